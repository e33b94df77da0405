"""The command line: one function a command, each importing its work when called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from aloft.cli.errors import UserError

app = typer.Typer(
    help="aloft: vLLM on Ascend NPUs, and on a virtual NPU where there is none.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version_wanted: Annotated[bool, typer.Option("--version", help="Print aloft's version.")] = False,
) -> None:
    if version_wanted:
        version()
        raise typer.Exit()


def need_runtime() -> None:
    """Refuses in one line what would end in torch's trace: the virtual NPU is not built, or there is no NPU for CANN.

    Raises:
        UserError: as said, or ALOFT_RUNTIME is wrong.
    """
    from aloft.runtime.choice import NO_DEVICE, device_nodes, missing_libraries, runtime_choice

    try:
        virtual = runtime_choice() == "virtual"
    except ValueError as error:
        raise UserError(str(error)) from error
    if virtual and (missing := missing_libraries()):
        raise UserError(f"The virtual NPU is not built here ({missing}); see `aloft doctor`.")
    if not virtual and not device_nodes():
        raise UserError(f"ALOFT_RUNTIME is cann, but {NO_DEVICE}.")


# Commands that hand what they do not know on to another program.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

Host = Annotated[str, typer.Option(help="Address of the server.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of the server.")]


@app.command(context_settings=_PASS_ON)
def serve(
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    ask: Annotated[bool, typer.Option(help="Ask one question once the server is healthy.")] = True,
) -> None:
    """aloft serve [MODEL] [OPTIONS]: serve a model over the OpenAI API, in the foreground.

    MODEL is a folder or a name and comes before the options; left out, the demo model is served. Options not listed
    here go to `vllm serve`.
    """
    from aloft.cli.serve import serve as work

    need_runtime()
    # Not an argument of the parser: that would take the value of an option it does not know for the model.
    model = context.args.pop(0) if context.args and not context.args[0].startswith("-") else None
    raise typer.Exit(work(model, host, port, context.args, ask))


@app.command(context_settings=_PASS_ON)
def run(
    context: typer.Context,
    devices: Annotated[int | None, typer.Option(min=1, max=64, help="Number of devices (ALOFT_DEVICES).")] = None,
    soc: Annotated[str | None, typer.Option(help="Device profile, such as 910B3 (ALOFT_SOC).")] = None,
) -> None:
    """Run any torch_npu program on the virtual NPU: aloft run -- python train.py"""
    from aloft.cli.run import run as work

    work(context.args, devices, soc)


@app.command(context_settings={**_PASS_ON, "help_option_names": []})
def ops(context: typer.Context) -> None:
    """Run every operator against its float64 reference on the present runtime (--schemes: what quantization needs)."""
    if context.args == ["--schemes"]:
        from aloft.cli.schemes import schemes

        raise typer.Exit(schemes())
    need_runtime()
    from aloft.ops.conformance import main as work

    raise typer.Exit(work(context.args))


@app.command()
def quantize(
    model: Annotated[Path, typer.Argument(help="Folder of a bfloat16 or float16 model.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; the same command continues an interrupted run.")],
    scheme: Annotated[str, typer.Option(help="float, w8a16, w8a8-dynamic, w8a8-static, w4a16, w4a8 or w4a4.")],
    calib: Annotated[Path | None, typer.Option(help="Calibration text, UTF-8.")] = None,
    format: Annotated[str, typer.Option(help="modelslim or compressed-tensors.")] = "modelslim",
    algorithm: Annotated[
        str, typer.Option(help="auto (the scheme's own), minmax, mse, gptq, smoothquant or awq.")
    ] = "auto",
    group_size: Annotated[int | None, typer.Option(help="Inputs that share a scale, 0 for a whole row.")] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric/--asymmetric",
            help="Without or with zero point: of w4a16's weights, of w8a8-static's activations.",
        ),
    ] = None,
    kv: Annotated[str, typer.Option(help="auto, or int8: keys and values with a scale a channel.")] = "auto",
    embedding: Annotated[
        str, typer.Option(help="auto (as it is), int8 or int4: the vocabulary table, and a head tied to it.")
    ] = "auto",
    target_bits: Annotated[
        float | None, typer.Option(help="Mean width: the most sensitive layers of w4a16 or w4a8 get 8 bits.")
    ] = None,
    max_loss: Annotated[
        str | None, typer.Option(help="Or: the rise of the perplexity to stay below as predicted, such as 1%.")
    ] = None,
    tune: Annotated[
        int,
        typer.Option(min=0, help="Steps that train all 4-bit layers' scales together (8 bytes of memory a weight)."),
    ] = 0,
    tune_samples: Annotated[int, typer.Option(min=1, help="Calibration windows to train on.")] = 256,
    seed: Annotated[int, typer.Option(help="Draws calibration windows and rotations.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Calibration windows.")] = 64,
    length: Annotated[int, typer.Option(min=8, help="Tokens of a calibration window.")] = 512,
    report: Annotated[bool, typer.Option(help="Print the error of each kind of layer.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Discard a checkpoint or an unfinished run with other settings in OUT.")
    ] = False,
) -> None:
    """Make a quantized checkpoint, on the CPU, block by block."""
    need_runtime()
    from aloft.cli.quantize import Settings, share
    from aloft.cli.quantize import quantize as work

    settings = Settings(
        scheme,
        format,
        algorithm,
        group_size,
        symmetric,
        seed,
        kv,
        target_bits,
        samples,
        length,
        tune=tune,
        tune_samples=tune_samples,
        max_loss=None if max_loss is None else share(max_loss),
        embedding=embedding,
    )
    raise typer.Exit(work(model, out, settings, calib, report, overwrite))


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a model.")],
    text: Annotated[Path, typer.Option(help="The text to predict, UTF-8; never the calibration text.")],
    reference: Annotated[Path | None, typer.Option(help="Model to compare with, or scores saved with --save.")] = None,
    tokens: Annotated[int, typer.Option(min=0, help="Predicted tokens at least; 0 for the whole text.")] = 0,
    window: Annotated[int, typer.Option(help="Tokens of context a piece of the text has.")] = 1024,
    candidates: Annotated[int, typer.Option(help="Likeliest tokens kept for the divergence.")] = 20,
    save: Annotated[Path | None, typer.Option(help="Where to keep the scores (.npz).")] = None,
    quantization: Annotated[str | None, typer.Option(help="As vllm serve's.")] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="As vllm serve's.")] = "auto",
    additional_config: Annotated[str, typer.Option(help="As vllm serve's, a JSON object.")] = "{}",
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Measure perplexity, next-token accuracy and divergence on a text, through the engine."""
    need_runtime()
    from aloft.cli import flags
    from aloft.cli.evaluate import EvalSettings
    from aloft.cli.evaluate import evaluate as work

    told = flags.additional_config(additional_config)
    settings = EvalSettings(
        text, reference, tokens, window, candidates, save, quantization, kv_cache_dtype, told, json_output
    )
    raise typer.Exit(work(model, settings))


@app.command()
def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Say what of this environment works, what does not, and how to mend it."""
    from aloft.cli.doctor import doctor as work

    raise typer.Exit(work(json_output))


@app.command("demo-model")
def demo_model(
    to: Annotated[Path | None, typer.Option(help="Folder to write; one in the cache where left out.")] = None,
) -> None:
    """Make the demo model's folder (SmolLM2-135M-Instruct, weights dequantized from Q4_1) and print its path."""
    from aloft.cli.demo_model import ensure

    print(ensure(to))


@app.command()
def demo(
    prompt: Annotated[str, typer.Option(help="The question asked.")] = "What is the capital of France?",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 32,
) -> None:
    """Answer one question offline through vllm.LLM with the demo model."""
    from aloft.cli.demo import demo as work

    need_runtime()
    raise typer.Exit(work(prompt, max_tokens))


@app.command()
def chat(host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Chat in the terminal with the running server."""
    from aloft.cli.chat import chat as work

    raise typer.Exit(work(host, port))


@app.command()
def profile(
    context: typer.Context,
    model: Annotated[Path | None, typer.Argument(help="Model folder; the demo model where left out.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 1,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens each sequence begins with.")] = 32,
    prefill: Annotated[int, typer.Option(min=1, help="Length of the prompt whose prefill is timed.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps timed.")] = 16,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    eager: Annotated[bool, typer.Option("--eager", help="No captured graphs, no asynchronous scheduling.")] = False,
    quantization: Annotated[str | None, typer.Option(help="As vllm serve's.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="As vllm serve's.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="As vllm serve's.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="As vllm serve's.")] = None,
    additional_config: Annotated[str, typer.Option(help="As vllm serve's, a JSON object; run_ahead stays off.")] = "{}",
    start: Annotated[bool, typer.Option("--start", help="Where the time of a start goes, not that of a step.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Starts; the one whose time is the median is shown.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of tables.")] = False,
) -> None:
    """Show where the time of a step goes, by operator and by part of the engine, or that of a start, phase by phase."""
    from aloft.cli import flags
    from aloft.cli.demo_model import ensure
    from aloft.cli.engine_flags import EngineFlags
    from aloft.cli.profile import Settings
    from aloft.cli.profile import profile as work
    from aloft.cli.serve import require_folder
    from aloft.cli.start import StartSettings, profile_start

    _refuse_given(context, ("batch", "prompt", "prefill", "steps") if start else ("repeat",), start)
    told = EngineFlags(
        flags.additional_config(additional_config), kv_cache_dtype, quantization, max_num_batched_tokens, block_size
    )
    told.check(dtype)
    if not start:
        told.without_run_ahead()
    if model is not None:
        require_folder(model)
    need_runtime()
    if start:
        raise typer.Exit(profile_start(StartSettings(model or ensure(), dtype, eager, repeat, told), json_output))
    settings = Settings(model or ensure(), dtype, batch, prompt, steps, prefill, eager, told)
    raise typer.Exit(work(settings, json_output))


def _refuse_given(context: typer.Context, names: tuple[str, ...], start: bool) -> None:
    """Refuses options of steps beside --start, and those of a start without it."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"--{name} is for steps: leave it out." if start else f"--{name} is for --start only.")


@app.command()
def version() -> None:
    """Print aloft's version."""
    from aloft import __version__

    print(__version__)


def main() -> int:
    """Entry point of the `aloft` command; a mistake of the user is one sentence and status 1."""
    try:
        app(prog_name="aloft")
    except UserError as error:
        print(f"aloft: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
