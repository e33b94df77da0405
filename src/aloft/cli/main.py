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
    """Run every operator against its float64 reference on the present runtime."""
    from aloft.ops.conformance import main as work

    raise typer.Exit(work(context.args))


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

    raise typer.Exit(work(prompt, max_tokens))


@app.command()
def chat(host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Chat in the terminal with the running server."""
    from aloft.cli.chat import chat as work

    raise typer.Exit(work(host, port))


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
