"""What a row and a sweep file may hold, as JSON Schema, generated from what reads them: `glabench schema row|sweep`.

A schema says less than its reader: not that a sub-chunk divides its chunk, lengths come to T, or a checksum is right.
What it refuses, the reader refuses.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from glabench import nested, store
from glabench.spec.axes import AXES
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.spec.sweep import SweepFile
from glabench.spec.values import CaseValues

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_PLAIN: dict[str, Any] = {"str": str, "str | None": str | None, "int": int}
_LISTED = {"type": "array", "items": {"type": "integer", "exclusiveMinimum": 0}, "minItems": 1}
_OF_A_CASE = ("tokens", "attention")  # keys of a file that a block of `cases` may have for itself
_BLOCKS = ("defaults", "axes", "cases", "exclude", "compile")


class _Written(GenerateJsonSchema):
    """As JSON has it: a number that JSON cannot hold is a text."""

    def float_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().float_schema(schema)
        if schema.get("allow_inf_nan") is False:
            return found
        return {"anyOf": [found, {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def row() -> Schema:
    """Of a line of a file of rows."""
    model = _row_model()
    found = model.model_json_schema(by_alias=True, schema_generator=_Written)
    later = {"properties": {"schema": {"minimum": store.FIRST_WITH_CHECKSUM}}}
    about = "One case of a sweep or a profile. What each part is stands in glabench/store.py."
    return _finished(found, "a row of glabench", about) | {"if": later, "then": {"required": ["checksum"]}}


def _row_model() -> type[BaseModel]:
    """The fields of a row with the types that they are checked by; those of a row without a default are required."""
    parts = nested.Parts.model_fields
    made: dict[str, Any] = {}
    for one in fields(store.Row):
        kind = str(one.type)
        known = parts[one.name].annotation if one.name in parts else _PLAIN[kind]
        if not kind.endswith("| None"):  # the parts may all be missing; of a row some are not
            known = next((arm for arm in get_args(known) if arm is not type(None)), known)
        made[one.name] = (known, ...) if one.name in store.NEEDED else (known, None)
    made["status"] = (Literal[store.STATUSES], ...)
    del made["schema"]
    made["schema_"] = (Annotated[int, Field(ge=1, le=store.SCHEMA, alias="schema")], ...)
    made["checksum"] = (Annotated[str, Field(pattern="^[0-9a-f]{16}$")], "")
    return create_model("Row", __config__=ConfigDict(strict=True, extra="forbid"), **made)


def sweep() -> Schema:
    """Of a sweep file: YAML, read as JSON."""
    found = SweepFile.model_json_schema()
    blocks = _blocks({name: found["properties"][name] for name in _OF_A_CASE})
    for place in (found, found["$defs"]["Section"]):
        place["properties"] |= {name: blocks[name] for name in _BLOCKS} | {"settings": _settings()}
    found["$defs"] |= {"Case": _case()}
    about = "What to run. Lists of values under axes and cases multiply; docs/sweeps.md has each key."
    return _finished(found, "a sweep of glabench", about)


def _case() -> Schema:
    """A field of a case to its values, one at a time."""
    known: Schema = CaseValues.model_json_schema()["properties"]
    known["system"]["enum"] = list(CATALOG)
    for name in (name for name, axis in AXES.items() if axis.listed):
        known[name]["anyOf"].append(_LISTED)
    return {"type": "object", "properties": _untitled(known)}


def _blocks(own: Schema) -> dict[str, Schema]:
    """What stands under each key that is about fields of cases; ``own``: what a block of `cases` may say besides."""
    names = list(CaseValues.model_fields)
    one = {name: {"$ref": f"#/$defs/Case/properties/{name}"} for name in names}
    several: Schema = {name: _one_or_more(of) for name, of in one.items()}
    rows = {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 2}}
    among = "|".join(names)
    coupled = {rf"^ *({among})( *, *({among}))+ *$": rows}  # "H,K,V": [[4, 128, 256], [16, 64, 64]]
    closed = {"type": "object", "additionalProperties": False}
    axes = closed | {"properties": several, "patternProperties": coupled, "minProperties": 1}
    case = closed | {"properties": several | own, "patternProperties": coupled}
    match = closed | {"properties": several, "minProperties": 1}
    return {
        "defaults": closed | {"properties": one},
        "axes": {"anyOf": [axes, {"type": "null"}]},
        "cases": {"anyOf": [{"type": "array", "minItems": 1, "items": case}, {"type": "null"}]},
        "exclude": {"type": "array", "items": match},
        "compile": {"anyOf": [{"type": "array", "items": match}, {"type": "null"}]},
    }


def _one_or_more(value: Schema) -> Schema:
    return {"anyOf": [value, {"type": "array", "minItems": 1, "items": value}]}


def _settings() -> Schema:
    """The numbers of Settings, all of them > 0."""
    numbers = {one.name: type(one.default) for one in fields(Settings) if type(one.default) in (int, float)}
    kinds = {name: {"type": "integer" if kind is int else "number"} for name, kind in numbers.items()}
    known = {name: kind | {"exclusiveMinimum": 0} for name, kind in kinds.items()}
    return {"type": "object", "properties": known, "additionalProperties": False}


def _finished(schema: Schema, title: str, about: str) -> Schema:
    return {"$schema": DIALECT, **_untitled(schema), "title": title, "description": about}


def _untitled(value: Any) -> Any:
    """Without the titles that pydantic makes of names; a field may be called title itself."""
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _untitled(item) for key, item in value.items() if key != "title" or not isinstance(item, str)}


SCHEMAS = {"row": row, "sweep": sweep}
