"""Content blocks of messages and items of the Responses API as parts of known kinds, see fields.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from agentspec.analysis.logs.account import Account, Where, type_name
from agentspec.analysis.logs.calls import BadRecordError, from_text
from agentspec.analysis.logs.formats import fields

_REDACTED = re.compile(fields.REDACTED, re.IGNORECASE)


_LONGEST_REDACTED = 80


class Part(NamedTuple):
    kind: fields.Kind
    text: str


def block_parts(block: Any, account: Account, where: Where) -> Iterator[Part]:
    """The parts of a content block or an item."""
    if isinstance(block, str):
        yield Part("text", block)
        return
    if not isinstance(block, dict):
        account.note_unknown(where, "block", block)
        return
    kind, block = _typed(block)
    row = fields.BLOCKS.get(kind) if kind is not None else None
    if row is None:
        account.note_unknown(where, f"block {'without a type' if kind is None else type_name(kind)}", block)
        return
    if row.kind == "none":
        account.note_left_out(where, f"block {kind}", block)
        return
    account.check(where, f"block {kind}", block, row.known)
    found = next((block[field] for field in row.text if block.get(field) not in (None, "", [])), None)
    if row.kind == "call":
        named = next((block[field] for field in row.name if isinstance(block.get(field), str)), row.tool)
        if not named:
            account.note_unknown(where, f"block {kind} without a name", block)
        elif found is None and not row.name:
            account.note_left_out(where, f"block {kind} without what the model asked for", block)
        else:
            yield Part("call", call_text(named, {} if found is None else found))
        for field in row.results:
            if block.get(field):
                yield Part("result", _result_text(block[field], account, where))
        return
    if row.kind == "result":
        if found is not None:
            yield Part("result", _result_text(found, account, where))
        return
    if found is None:
        if row.kind == "reasoning":
            # Some servers keep the reasoning to themselves, or send it encrypted.
            account.note_left_out(where, f"block {kind} without its text", block)
        return
    text = _block_text(found, account, where)
    if text:
        yield Part("reasoning" if block.get("thought") is True else row.kind, text)


def call_text(name: str, arguments: Any) -> str:
    """A call of a tool as text. Arguments recorded as a string stay as the model wrote them."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'


def is_redacted(text: str) -> bool:
    """Whether a program wrote this in place of a text that it does not log."""
    return len(text) <= _LONGEST_REDACTED and _REDACTED.fullmatch(text) is not None


def content_parts(content: Any, account: Account, where: Where) -> Iterator[Part]:
    if content is None:
        return
    content = _blocks_from_text(content)
    if isinstance(content, str):
        yield Part("text", content)
    elif isinstance(content, list):
        yield from merged(part for block in content for part in block_parts(block, account, where))
    elif isinstance(content, dict) and isinstance(content.get("parts"), list):
        yield from content_parts(content["parts"], account, where)
    elif isinstance(content, dict) and (
        content.get("type") in fields.BLOCKS or len(content) == 1 and "text" in content
    ):
        yield from block_parts(content, account, where)
    elif where == "prompt":
        # What a program answered may have any form.
        yield Part("text", json.dumps(content, ensure_ascii=False))
    else:
        raise BadRecordError("a message's content must be a string, a list of parts or null")


def _blocks_from_text(content: Any) -> Any:
    """Content whose blocks were stored as JSON in a string. A text that is other JSON stays as the model wrote it."""
    if not isinstance(content, str) or not content.startswith('[{"'):
        return content
    blocks = from_text(content)
    if isinstance(blocks, list) and all(isinstance(block, dict) and _is_block(block) for block in blocks):
        return blocks
    return content


def _is_block(block: Mapping[str, Any]) -> bool:
    row = fields.BLOCKS.get(block["type"]) if isinstance(block.get("type"), str) else None
    return row is not None and any(field in block for field in (*row.text, *row.name))


def merged(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts, of which texts that follow each other are one."""
    before: Part | None = None
    for part in parts:
        if before is not None and before.kind == part.kind == "text":
            before = Part("text", before.text + part.text)
            continue
        if before is not None:
            yield before
        before = part
    if before is not None:
        yield before


def _typed(block: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """The type of a block, and the block with its fields at the top."""
    kind = block.get("type")
    if isinstance(kind, str):
        return kind, block
    for field, named in fields.UNTYPED_BLOCKS.items():
        if field not in block:
            continue
        inner = block[field]
        if named == "reasoning" and isinstance(inner, dict):
            inner = inner.get("reasoningText", inner)
        return named, inner if isinstance(inner, dict) and field != "text" else block
    if isinstance(block.get("message_content"), dict):
        return _typed(block["message_content"])
    return None, block


def _block_text(value: Any, account: Account, where: Where) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("value"), str):
        return str(value["value"])
    if isinstance(value, list):
        return "".join(part.text for block in value for part in block_parts(block, account, where))
    account.note_unknown(where, "block with a text that is no string", value)
    return ""


def _result_text(value: Any, account: Account, where: Where) -> str:
    """What a tool answered. It may have any form, so what are no blocks is shown as JSON."""
    if isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else [value]
    if all(isinstance(block, dict) and _typed(block)[0] in fields.BLOCKS for block in blocks):
        return "\n".join(part.text for block in blocks for part in block_parts(block, account, where))
    return json.dumps(value, ensure_ascii=False)
