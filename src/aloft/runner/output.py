"""Results of a step, at once or when asked for (asynchronous scheduling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import AsyncModelRunnerOutput, LogprobsTensors, ModelRunnerOutput

if TYPE_CHECKING:
    from aloft.runner.token_copies import TokenCopy


class StepOutput(AsyncModelRunnerOutput):
    """Sampled tokens on their way to the host, and the output they belong to."""

    def __init__(
        self,
        output: ModelRunnerOutput,
        tokens: TokenCopy | None,
        logprobs: LogprobsTensors | None,
        unfinished_rows: Sequence[int],
    ) -> None:
        """tokens: None when no row samples. logprobs: on the host once the tokens are.

        unfinished_rows: rows whose prompt is not complete; they yield no token.
        """
        self._output = output
        self._tokens = tokens
        self._logprobs = logprobs
        self._unfinished = unfinished_rows

    def get_output(self) -> ModelRunnerOutput:
        """Waits for the copies and returns the step's output; called once."""
        output = self._output
        if self._tokens is None:
            output.sampled_token_ids = [[] for _ in output.req_ids]
            return output
        self._tokens.ready.synchronize()
        sampled = self._tokens.view(len(output.req_ids)).tolist()
        self._tokens.read()
        for row in self._unfinished:
            sampled[row] = []
        output.sampled_token_ids = sampled
        if self._logprobs is not None:
            output.logprobs = self._logprobs.tolists()
        return output

    def get_kv_connector_output(self) -> Any:
        return None
