"""Render chat templates in a process of their own, with limits on time, memory and output.

A template comes with a checkpoint. transformers renders it in a sandbox, which keeps it from running code or reading files,
but not from looping without end or multiplying a string. Run as a script, this file is that process: it answers one line of
JSON with another.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS, LONGEST, MEMORY = 20, 1_000_000, 2 << 30  # of rendering; characters; bytes

_lock = threading.Lock()
_processes: dict[int, subprocess.Popen[str]] = {}  # by the process that started it: a fork must not share the pipes


def render(tokenizer: Any, messages: Sequence[Mapping[str, str]], **options: bool) -> str:
    """The text of a chat; the options are those of `apply_chat_template`. Raise a ValueError that says what went wrong."""
    template = tokenizer.get_chat_template()
    request = {
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
        "conversations": [[dict(message) for message in messages]],
        "chat_template": template,
        **options,
    }
    # Starting the process takes as long as importing transformers; the templates of the bundled models need none.
    return _answer(request)["text"] if template in _bundled() else _ask(json.dumps(request))


@functools.cache
def _bundled() -> frozenset[str]:
    """The chat templates of the models that come with this package."""
    package = Path(__file__).parents[1]
    configs = [json.loads(path.read_text(encoding="utf-8")) for path in package.glob("**/tokenizer_config.json")]
    templates = [path.read_text(encoding="utf-8") for path in package.glob("**/chat_template.jinja")]
    return frozenset([*templates, *(config["chat_template"] for config in configs if "chat_template" in config)])


@functools.lru_cache(maxsize=1024)
def _ask(request: str) -> str:
    with _lock:
        process = _processes.get(os.getpid())
        if process is None or process.poll() is not None:
            process = _processes[os.getpid()] = _start()
        assert process.stdin is not None and process.stdout is not None
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            limit.cancel()
    if not answer:
        raise ValueError(f"it took more than {SECONDS} seconds or {MEMORY >> 30} GB")
    reply: dict[str, str] = json.loads(answer)
    if "error" in reply:
        raise ValueError(reply["error"])
    return reply["text"]


def _start() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", __file__],
        env={**os.environ, "USE_TORCH": "0", "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    process.stdout.readline()  # ready: the imports do not count
    return process  # which ends when its input is closed, at the latest with this process


def _answer(request: dict[str, Any]) -> dict[str, str]:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        [text] = render_jinja_template(**request)[0]
    except MemoryError:
        return {"error": f"it took more than {MEMORY >> 30} GB"}
    except Exception as error:  # a template may raise any exception
        return {"error": " ".join(str(error).split())[:300] or type(error).__name__}
    if len(text) > LONGEST:
        return {"error": f"its text has {len(text):,} characters; at most {LONGEST:,} are allowed"}
    return {"text": text}


def _main() -> None:
    import transformers.utils.chat_template_utils  # noqa: F401

    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    _main()
