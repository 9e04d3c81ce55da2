"""What every Block type of ours has to offer, whichever there are."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any, get_args

import pytest
from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from rayorch_flows import blocks
from rayorch_flows.orchestration.settings import places


def all_blocks() -> list[type[Block]]:
    """Every Block class that any module of the package defines."""
    found: dict[str, type[Block]] = {}
    for info in pkgutil.walk_packages(blocks.__path__, f"{blocks.__name__}."):
        module = importlib.import_module(info.name)
        for _, kind in inspect.getmembers(module, Block.is_block_class):
            if kind.__module__.startswith("rayorch_flows.blocks"):
                found[kind.__name__] = kind
    return [found[name] for name in sorted(found)]


def all_fields(kind: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model, and of the models inside it."""
    found: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        found[f"{kind.__name__}.{name}"] = field
        for part in (field.annotation, *get_args(field.annotation)):
            if inspect.isclass(part) and issubclass(part, BaseModel):
                found |= all_fields(part)
    return found


FIELDS = [(block, name, field) for block in all_blocks() for name, field in all_fields(block).items()]
each_block = pytest.mark.parametrize("block", all_blocks(), ids=lambda block: block.__name__)
each_field = pytest.mark.parametrize(
    ("block", "name", "field"), FIELDS, ids=[f"{block.__name__}-{name}" for block, name, _ in FIELDS]
)
SECRET_WORDS = re.compile(r"token|secret|password|storage_options|credential", re.IGNORECASE)


def test_all_are_public() -> None:
    assert [block.__name__ for block in all_blocks()] == sorted(blocks.__all__)
    assert len(FIELDS) >= 16, "the search finds fields"


@each_block
def test_has_a_name_and_a_slug(block: type[Block]) -> None:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", block.__name__)
    assert block.get_block_type_name() == name
    assert block.get_block_type_slug() == name.lower().replace(" ", "-")
    assert places.is_block(f"{block.get_block_type_slug()}/x"), "flow parameters can name it"


@each_block
def test_has_a_description_that_says_how_a_flow_takes_it(block: type[Block]) -> None:
    description = block.get_description()
    assert description is not None
    assert re.search(rf"`\w+: {block.get_block_type_slug()}/BLOCK_NAME`", description)


@each_block
def test_its_code_example_runs(block: type[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    code = block.get_code_example()
    assert code is not None
    assert f"from rayorch_flows.blocks import {block.__name__}\n" in code
    assert f'= {block.__name__}.load("BLOCK_NAME")\n' in code
    monkeypatch.setattr(block, "load", lambda name: example(block))
    exec(code.split("```python\n")[1].split("```")[0], {})


@each_block
def test_its_examples_make_a_block(block: type[Block]) -> None:
    made = example(block)
    assert isinstance(made, places.PlaceBlock)
    assert made.place() == made.place()


@each_block
def test_it_refuses_fields_that_it_does_not_know(block: type[Block]) -> None:
    given = {name: field.examples[0] for name, field in block.model_fields.items() if field.examples}
    with pytest.raises(ValueError, match="not permitted") as caught:
        block(**given, storage_option="hunter2-secret")
    assert "hunter2" not in str(caught.value)


@each_field
def test_every_field_is_described(block: type[Block], name: str, field: FieldInfo) -> None:
    assert field.title, "a title"
    assert field.title[0].isupper()
    assert field.description, "a description"
    assert field.description.endswith("."), "a sentence"
    assert field.examples, "an example"


@each_field
def test_what_sounds_secret_is_secret(block: type[Block], name: str, field: FieldInfo) -> None:
    assert bool(SECRET_WORDS.search(name)) == (field.annotation in (SecretStr, SecretDict))


@each_block
def test_secrets_are_not_shown(block: type[Block]) -> None:
    secret = {
        name: SecretDict({"key": "hunter2-secret"}) if field.annotation is SecretDict else SecretStr("hunter2-secret")
        for name, field in block.model_fields.items()
        if field.annotation in (SecretStr, SecretDict)
    }
    made = example(block, **secret)
    shown = f"{made} {made!r} {made.model_dump()} {made.model_dump_json()} {made.place()!r}"
    assert "hunter2" not in shown
    declared = {name.partition(".")[0] for name in block.model_json_schema()["secret_fields"]}
    assert declared == set(secret), "Prefect stores and hides them as secrets"


def example(block: type[Block], **changes: Any) -> Block:
    given = {name: field.examples[0] for name, field in block.model_fields.items() if field.examples}
    return block(**{**given, **changes})
