"""Answers with tool calls, in the format that each of SGLang's parsers reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.evals.tool_calls.calls import Call

Written = Callable[[str, Sequence[Call]], str]
"""Writes the text before the calls, which may be empty, and the calls."""


@dataclass(frozen=True)
class Format:
    """How a model writes its calls."""

    write: Written
    most_calls: int = 4
    escapes: bool = False
    """Whether values may hold any text. Formats that quote nothing are ambiguous about some."""
    has_text: bool = True
    """Whether text may come before the calls."""
    is_slow: bool = False
    """Whether the parser takes seconds for long answers, so that they are kept short."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(call: Call, arguments: str = "arguments") -> str:
    return _json({"name": call.name, arguments: call.arguments})


def _raw(value: Any) -> str:
    """A value as formats with tags write it: texts as they are, other values as JSON."""
    return value if isinstance(value, str) else _json(value)


def _joined(one: Callable[[Call], str], between: str = "", before: str = "", after: str = "") -> Written:
    return lambda text, calls: text + before + between.join(map(one, calls)) + after


def _tagged(
    open_call: str,
    one: Callable[[str, Any], str],
    close_call: str,
    *,
    between: str = "",
    around: tuple[str, str] = ("", ""),
) -> Format:
    """Calls whose arguments are written one by one; `{}` of `open_call` is the name."""

    def write(call: Call) -> str:
        return open_call.format(call.name) + "".join(one(*pair) for pair in call.arguments.items()) + close_call

    return Format(_joined(write, between, *around))


def _keyed(key: str, value: str) -> Callable[[str, Any], str]:
    return lambda name, found: key.format(name) + value.format(_raw(found))


def _dsml(block: str, invoke: str, parameter: str, marker: str = "｜DSML｜") -> Format:
    def one(name: str, value: Any) -> str:
        kind = "true" if isinstance(value, str) else "false"
        return f'<{marker}{parameter} name="{name}" string="{kind}">{_raw(value)}</{marker}{parameter}>\n'

    return _tagged(
        f'<{marker}{invoke} name="{{}}">\n',
        one,
        f"</{marker}{invoke}>\n",
        around=(f"\n\n<{marker}{block}>\n", f"</{marker}{block}>"),
    )


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return _json(value)


def _python(call: Call) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _harmony(text: str, calls: Sequence[Call]) -> str:
    start = "<|start|>assistant"
    parts = [
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{_json(call.arguments)}<|call|>"
        for call in calls
    ]
    return start.join([f"<|channel|>analysis<|message|>{text or 'A call.'}<|end|>", *parts])


def _beam(text: str, calls: Sequence[Call]) -> str:
    parts = [
        f" to={call.name}<|channel|>analysis <|constrain|>xml<|message|>"
        + "".join(f'<rfl:parameter name="{k}">\n{_raw(v)}\n</rfl:parameter>' for k, v in call.arguments.items())
        for call in calls
    ]
    return "<|end|><|start|>assistant".join(parts) + "<|call|>"


def _kimi_k2(text: str, calls: Sequence[Call]) -> str:
    parts = [
        f"<|tool_call_begin|>functions.{call.name}:{i}<|tool_call_argument_begin|>{_json(call.arguments)}<|tool_call_end|>"
        for i, call in enumerate(calls)
    ]
    return f"{text}<|tool_calls_section_begin|>{''.join(parts)}<|tool_calls_section_end|>"


def _kimi_k3(text: str, calls: Sequence[Call]) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    parts = [
        f'<|open|>call tool="{call.name}" index="{i}"<|sep|>'
        + "".join(
            f'<|open|>argument key="{k}" type="{kinds[type(v)]}"<|sep|>{_raw(v)}<|close|>argument<|sep|>'
            for k, v in call.arguments.items()
        )
        + "<|close|>call<|sep|>"
        for i, call in enumerate(calls, 1)
    ]
    answer = f"<|open|>response<|sep|>{text}<|close|>response<|sep|>" if text else ""
    return f"{answer}<|open|>tools<|sep|>{''.join(parts)}<|close|>tools<|sep|>"


def _muse(text: str, calls: Sequence[Call]) -> str:
    parts = [
        f'<atem:invoke name="{call.name}">\n'
        + "".join(f'<atem:parameter name="{k}">{_raw(v)}</atem:parameter>\n' for k, v in call.arguments.items())
        + "</atem:invoke>\n"
        for call in calls
    ]
    answer = f" to=user<|message|>{text}<|eom|><|start|>assistant" if text else ""
    block = "<atem:function_calls>\n" + "".join(parts) + "</atem:function_calls>"
    return f"{answer} to=functions<|message|>{block}<|eot|>"


_MINIMAX = "]<]minimax[>["


def _minimax_m3(value: Any, tag: str) -> str:
    if isinstance(value, dict):
        inner = "".join(_minimax_m3(one, key) for key, one in value.items())
    elif isinstance(value, list):
        inner = "".join(_minimax_m3(one, "item") for one in value)
    else:
        inner = _raw(value)
    return f"{_MINIMAX}<{tag}>{inner}{_MINIMAX}</{tag}>"


def _cohere(call: Call) -> str:
    return "    " + _json({"tool_call_id": "0", "tool_name": call.name, "parameters": call.arguments})


_PARAMETER = _keyed('<parameter name="{}">', "{}</parameter>\n")
_ARGS = _keyed("<arg_key>{}</arg_key>", "<arg_value>{}</arg_value>")
_ARG_LINES = _keyed("<arg_key>{}</arg_key>\n", "<arg_value>{}</arg_value>\n")
_GLM = _tagged("<tool_call>{}\n", _ARG_LINES, "</tool_call>", between="\n")
_QWEN = Format(_joined(_object, "\n</tool_call>\n<tool_call>\n", "<tool_call>\n", "\n</tool_call>"), escapes=True)
_CODER = _tagged(
    "<tool_call>\n<function={}>\n",
    _keyed("<parameter={}>\n", "{}\n</parameter>\n"),
    "</function>\n</tool_call>",
    between="\n",
)
_DEEPSEEK = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"

FORMATS: dict[str, Format] = {
    "apertus2509": Format(
        _joined(lambda call: _json({call.name: call.arguments}), ", ", "<|tools_prefix|>[", "]<|tools_suffix|>"),
        escapes=True,
    ),
    "beam": Format(_beam, has_text=False),
    "cohere_command4": Format(_joined(_cohere, ",\n", "<|START_ACTION|>[\n", "\n]<|END_ACTION|>"), escapes=True),
    "deepseekv3": Format(
        _joined(
            lambda call: (
                f"{_DEEPSEEK_CALL[0]}function{_SEPARATOR}{call.name}\n```json\n{_json(call.arguments)}\n```{_DEEPSEEK_CALL[1]}"
            ),
            "\n",
            *_DEEPSEEK,
        ),
        escapes=True,
    ),
    "deepseekv31": Format(
        _joined(
            lambda call: f"{_DEEPSEEK_CALL[0]}{call.name}{_SEPARATOR}{_json(call.arguments)}{_DEEPSEEK_CALL[1]}",
            "",
            *_DEEPSEEK,
        ),
        escapes=True,
    ),
    "deepseekv32": _dsml("function_calls", "invoke", "parameter"),
    "deepseekv4": _dsml("tool_calls", "invoke", "parameter"),
    "deepseekv41": _dsml(" calls", " invoke", " parameter"),
    "dots": _tagged(
        '<invoke name="{}">\n', _PARAMETER, "</invoke>\n", around=("<dots_function_call>\n", "</dots_function_call>")
    ),
    "gemma4": Format(_joined(lambda call: f"<|tool_call>call:{call.name}{_gemma(call.arguments)}<tool_call|>")),
    "gigachat3": Format(
        lambda text, calls: f"{text}<|message_sep|>\n\nfunction call<|role_sep|>\n{_object(calls[0])}",
        most_calls=1,
        escapes=True,
    ),
    "gigachat35": _dsml("tool_calls", "invoke", "parameter", "｜GCML｜"),
    "glm": _GLM,
    "glm45": _GLM,
    "glm47": _tagged("<tool_call>{}", _ARGS, "</tool_call>"),
    "gpt-oss": Format(_harmony, escapes=True),
    "hermes": Format(_joined(_object, "</tool_call>\n<tool_call>", "<tool_call>", "</tool_call>"), escapes=True),
    "hunyuan": _tagged(
        "<tool_call>{}<tool_sep>\n", _ARG_LINES, "</tool_call>\n", around=("<tool_calls>\n", "</tool_calls>")
    ),
    "inkling": Format(
        _joined(
            lambda call: (
                f"<|message_model|>{call.name}<|content_invoke_tool_json|>"
                f"{_json({'name': call.name, 'args': call.arguments})}<|end_message|>"
            )
        ),
        escapes=True,
    ),
    "interns1": Format(
        _joined(lambda call: f"<|action_start|> <|plugin|>\n{_object(call, 'parameters')}<|action_end|>\n"),
        escapes=True,
    ),
    "iquest_q1": _tagged("<iquest_tool_call>{}", _ARGS, "</iquest_tool_call>"),
    "json array": Format(
        _joined(lambda call: _object(call, "parameters"), ", ", "[", "]"), escapes=True, has_text=False
    ),
    "k2_horizon": _tagged(
        "<ifm|tool_call>{}\n",
        _keyed("<ifm|arg_key>{}</ifm|arg_key>\n", "<ifm|arg_value>{}</ifm|arg_value>\n"),
        "</ifm|tool_call>\n",
        around=("<ifm|tool_calls>\n", "</ifm|tool_calls>"),
    ),
    "kimi_k2": Format(_kimi_k2, escapes=True),
    "kimi_k3": Format(_kimi_k3),
    "lfm2": Format(_joined(_python, ", ", "<|tool_call_start|>[", "]<|tool_call_end|>"), escapes=True),
    "ling3": _GLM,
    "llama3": Format(_joined(lambda call: _object(call, "parameters"), ";", "<|python_tag|>"), escapes=True),
    "mimo": _tagged(
        "<tool_call>\n<function={}>\n",
        _keyed("<parameter={}>", "{}</parameter>\n"),
        "</function>\n</tool_call>",
        between="\n",
    ),
    "minicpm5": _tagged('<function name="{}">', _keyed('<param name="{}">', "{}</param>"), "</function>", between="\n"),
    "minimax-m2": _tagged(
        '<invoke name="{}">\n', _PARAMETER, "</invoke>\n", around=("<minimax:tool_call>\n", "</minimax:tool_call>")
    ),
    "minimax-m3": _tagged(
        _MINIMAX + '<invoke name="{}">',
        lambda key, value: _minimax_m3(value, key),
        _MINIMAX + "</invoke>",
        around=(_MINIMAX + "<tool_call>", _MINIMAX + "</tool_call>"),
    ),
    "mistral": Format(_joined(_object, ", ", "[TOOL_CALLS] [", "]"), escapes=True),
    "mistral, compact": Format(
        _joined(lambda call: f"[TOOL_CALLS]{call.name}[ARGS]{_json(call.arguments)}"), escapes=True
    ),
    "muse": Format(_muse),
    "nanbeige": _CODER,
    "poolside_v1": _GLM,
    "pythonic": Format(_joined(_python, ", ", "[", "]"), most_calls=2, has_text=False, is_slow=True),
    "qwen": _QWEN,
    "qwen25": _QWEN,
    "qwen3_coder": _CODER,
    "response_template": Format(_beam, has_text=False),
    "spark25": _tagged(
        "<tool_call>{}\n", _keyed("<arg_key>{}</arg_key>", "<arg_value>{}</arg_value>\n"), "</tool_call>", between="\n"
    ),
    "step3": _tagged(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{}">\n',
        _keyed('<steptml:parameter name="{}">', "{}</steptml:parameter>\n"),
        "</steptml:invoke><｜tool_call_end｜>\n",
        around=("<｜tool_calls_begin｜>\n", "<｜tool_calls_end｜>"),
    ),
    "step3p5": _CODER,
    "trinity": _QWEN,
}
"""By the name of the parser, and what else tells several formats of one parser apart."""


def parser_of(name: str) -> str:
    """The parser that reads a format."""
    return name.partition(",")[0]


MARKERS = (
    *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_sep>"),
    *("<tool_calls>", "</tool_calls>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<|action_start|>",
     "<|action_end|>"),
    *("<|plugin|>", *_DEEPSEEK, *_DEEPSEEK_CALL, _SEPARATOR, "｜DSML｜", "｜GCML｜", "<|START_ACTION|>", "<|END_ACTION|>"),
    *("<|tools_prefix|>", "<|tools_suffix|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|role_sep|>",
     "<|message_sep|>"),
    *("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|eom|>", "<|eot|>"),
    *("<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>", "<iquest_tool_call>"),
    *("</iquest_tool_call>", "<ifm|tool_call>", "</ifm|tool_call>", "<ifm|tool_calls>", "</ifm|tool_calls>"),
    *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>", "<|tool_calls_section_begin|>"),
    *("<|tool_calls_section_end|>", "<|open|>", "<|close|>", "<|sep|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", _MINIMAX, "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    *("<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>", "<think>", "</think>", "[THINK]", "[/THINK]"),
)  # fmt: skip
"""Texts that are one token each in the vocabularies of models that write these formats."""
