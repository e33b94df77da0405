"""`aloft chat`: a terminal chat against the running server."""

from __future__ import annotations

import httpx

from aloft.cli.client import Answer, Client, Message
from aloft.cli.errors import UserError

# Small models ramble at the API's default temperature of 1.
SAMPLING = {"temperature": 0.2, "top_p": 0.9, "max_tokens": 512}


def chat(host: str, port: int) -> int:
    """Read lines from the terminal and stream the answers until end of input."""
    client = Client(host, port)
    model = client.model()
    print(f"Chatting with {model} at {client.base}. An empty line starts anew; Ctrl-D or Ctrl-C ends.")
    messages: list[Message] = []
    try:
        while True:
            line = input("> ").strip()
            if not line:
                messages = []
                print("(new conversation)")
                continue
            messages.append({"role": "user", "content": line})
            answer = Answer()
            try:
                for piece in client.stream(model, messages, answer, **SAMPLING):
                    print(piece, end="", flush=True)
            except UserError as error:
                print(f"aloft: {error}")
                messages.pop()
                continue
            except httpx.HTTPError as error:
                raise UserError(f"The connection to {client.base} broke: {error}") from error
            print(f"\n[{answer.num_tokens} tokens, {answer.tokens_per_second():.1f} tok/s]")
            messages.append({"role": "assistant", "content": answer.text})
    except (EOFError, KeyboardInterrupt):
        print()
        return 0
    finally:
        client.close()
