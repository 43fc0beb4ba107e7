"""Installs packages into an environment: with uv where .venv has it, which takes seconds, and otherwise with pip.

.venv/bin/python .ci/install.py .venv-agents/bin/python -r requirements.txt
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

# Settings of pip, the variables in which uv reads the same, and what separates values there.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


def configuration() -> dict[str, str]:
    """What pip is configured to use, as variables of uv, which reads no configuration of pip.

    Without it uv might take a build of torch for GPUs, which is several GB, where pip takes one for CPUs.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pairs = (line.split("=", 1) for line in listed.splitlines())
    settings = {name.replace(":env:.", ":env:"): ast.literal_eval(value) for name, value in pairs}
    found = {}
    # The environment has the last word, as in pip.
    for place in ("global.", "user.", "site.", "install.", ":env:"):
        for name, (variable, separator) in VARIABLES.items():
            if value := settings.get(f"{place}{name}"):
                found[variable] = separator.join(value.split())
    return found


def main() -> None:
    python, *arguments = sys.argv[1:]
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        command = [str(uv), "pip", "install", "--python", python]
        # As in pip, the best version of all indexes counts.
        variables = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_HTTP_TIMEOUT": "180", **configuration()}
    else:
        command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"]
        variables = {}
    os.execve(command[0], [*command, "--quiet", *arguments], {**os.environ, **variables})


main()
