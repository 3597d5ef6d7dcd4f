"""Clients that are too heavy for every CI run, or that hold a package of the others back; run by hand:

    python -m tests.clients.heavy                                  # simulated back ends
    python -m tests.clients.heavy --base-url http://HOST:8080 --model NAME      # a gateway that runs

Each gets a virtual environment of its own under --environments (default: a temporary one), installed from the package
index, so that nothing of theirs enters the development environment. Installed sizes beyond what the tests have:

    litellm                        about 300 MB
    llama-index-llms-openai-like   about 140 MB
    instructor                     about 12 MB, but it holds `openai` back at an older version

Prints client, version and what was exercised; exit status 1 if a client failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.fleet import MODEL, fleet_in_threads

CLIENTS: dict[str, str] = {
    "litellm": """
import litellm
ask = dict(model="openai/" + MODEL, api_base=URL + "/v1", api_key="none", num_retries=0, max_tokens=60)
messages = [{"role": "user", "content": "Is water wet? Answer yes or no."}]
assert litellm.completion(messages=messages, **ask).choices[0].message.content
done("chat")
assert "".join(p.choices[0].delta.content or "" for p in litellm.completion(messages=messages, stream=True, **ask))
done("stream")
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
called = litellm.completion(messages=messages, tools=tools, tool_choice="required", **ask)
assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
done("tools")
vllm = {**ask, "model": "hosted_vllm/" + MODEL}
assert litellm.completion(messages=messages, **vllm).choices[0].message.content
done("hosted_vllm provider")
try:
    assert litellm.embedding(input=["a"], model=ask["model"], api_base=ask["api_base"], api_key="none").data[0]
    done("embeddings")
except litellm.NotFoundError:
    done("embeddings refused by the back end")
claude = dict(ask, model="anthropic/" + MODEL, api_base=URL)
assert litellm.completion(messages=messages, **claude).choices[0].message.content
done("messages format")
try:
    litellm.completion(messages=messages, **dict(ask, model="openai/nope"))
except litellm.NotFoundError:
    done("NotFoundError")
""",
    "llama-index-llms-openai-like": """
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
llm = OpenAILike(model=MODEL, api_base=URL + "/v1", api_key="none", is_chat_model=True, max_retries=0, max_tokens=60,
                 is_function_calling_model=True)
message = ChatMessage(role="user", content="Is water wet? Answer yes or no.")
assert llm.chat([message]).message.content
done("chat")
assert "".join(piece.delta or "" for piece in llm.stream_chat([message]))
done("stream")
assert llm.complete("Is water wet?").text
done("complete")
from llama_index.core.tools import FunctionTool
def get_weather(city: str) -> str:
    "Weather in a city."
    return "rain"
tool = FunctionTool.from_defaults(get_weather)
answer = llm.chat_with_tools([tool], user_msg="Weather in Osaka?", tool_required=True)
assert llm.get_tool_calls_from_response(answer)[0].tool_name == "get_weather"
done("tools")
""",
    "instructor": """
import instructor, openai, pydantic
class Verdict(pydantic.BaseModel):
    label: str
    sure: bool
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(base_url=URL + "/v1", api_key="none"), mode=mode)
    made = client.chat.completions.create(
        model=MODEL, response_model=Verdict, messages=[{"role": "user", "content": "Spam? Hello."}], max_retries=0,
        max_tokens=60)
    assert isinstance(made, Verdict)
    done(mode.name.lower())
""",
}
_AROUND = """
import sys, importlib.metadata
URL, MODEL, NAME = sys.argv[1:4]
exercised = []
def done(what):
    exercised.append(what)
try:
    exec(open(sys.argv[4]).read())
finally:
    print("EXERCISED", importlib.metadata.version(NAME), "|", ", ".join(exercised))
"""


def main() -> int:
    """Runs every client, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("clients", nargs="*", help=", ".join(CLIENTS))
    parser.add_argument("--base-url", help="a running gateway, without /v1 (default: one on simulated back ends)")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--environments", type=Path, help="folder that keeps the clients' environments")
    options = parser.parse_args()
    failed = False
    with _folder(options.environments) as folder, _gateway(options.base_url) as url:
        for name in options.clients or CLIENTS:
            failed |= not _run(name, folder / name, url, options.model)
    return int(failed)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@contextmanager
def _gateway(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given.rstrip("/")
        return
    with fleet_in_threads() as url:
        yield url


def _run(name: str, environment: Path, url: str, model: str) -> bool:
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", name], check=True)
    around, script = environment / "around.py", environment / "exercise.py"
    around.write_text(_AROUND)
    script.write_text(CLIENTS[name])
    done = subprocess.run(
        [str(python), str(around), url, model, name, str(script)], capture_output=True, text=True, timeout=300
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("EXERCISED")), "EXERCISED ? |")
    version, _, exercised = line.removeprefix("EXERCISED ").partition(" | ")
    print(f"{name} | {version} | {exercised} | {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
