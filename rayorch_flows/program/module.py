"""RayModule: a Function, how to construct it, and where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Self, overload

from rayorch_flows.program.options import check_options
from rayorch_flows.program.plan import InputPlan, SourceLine
from rayorch_flows.program.ports import OptionalPort, Port
from rayorch_flows.program.source_lines import caller_line, compile_error, compile_warning
from rayorch_flows.program.trace import Trace
from rayorch_flows.program.values.copies import own
from rayorch_flows.program.values.type_guards import is_dict, is_list, is_set


class RayModule:
    """A Function with its constructor arguments and physical options; it owns one pool of actors.

    ``udf`` is a class with ``run`` (or ``__call__``), an instance of one, or a plain function: batch in, batch out.
    Called in ``forward``, it makes a Call; called several times, its Calls share the actors.
    """

    def __init__(self, udf: Any, *, num_outputs: int = 1) -> None:
        self._where = caller_line()
        self._udf = udf
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._options: dict[str, Any] = {}
        _check_function(udf, self._where)
        self._outputs = _check_outputs(num_outputs, "num_outputs", self.label, self._where)

    @property
    def label(self) -> str:
        """The name of the Function."""
        udf = self._udf
        name = getattr(udf, "__name__", None) or type(udf).__name__
        return "function" if name == "<lambda>" else name

    @property
    def where(self) -> SourceLine | None:
        """The user's line that made this module."""
        return self._where

    @property
    def function(self) -> Any:
        return self._udf

    @property
    def args(self) -> tuple[Any, ...]:
        return self._args

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._kwargs

    @property
    def options(self) -> dict[str, Any]:
        return self._options

    @property
    def outputs(self) -> int:
        return self._outputs

    def pre_init(self, *args: Any, **kwargs: Any) -> Self:
        """The arguments with which every actor constructs the Function; nothing is constructed now."""
        where = caller_line()
        if not isinstance(self._udf, type):
            compile_warning(f"pre_init(...) of {self.label} has no effect: only a class is constructed", where)
            return self
        for name, value in [*enumerate(args), *kwargs.items()]:
            if isinstance(value, (Port, OptionalPort)):
                raise compile_error(
                    f"pre_init argument {name!r} of {self.label} is a Port",
                    "A constructor runs once for each actor. Give the Port to the Call: self.module(x).",
                    where,
                )
        try:
            inspect.signature(self._udf).bind(*args, **kwargs)
        except TypeError as error:
            raise compile_error(
                f"{self.label}.__init__ does not take these arguments: {error}",
                f"Its signature is {self.label}{inspect.signature(self._udf)}.",
                where,
            ) from None
        except ValueError:  # a builtin without a signature: only the actor can know
            pass
        self._args, self._kwargs = args, kwargs
        return self

    def ray_options(self, **options: Any) -> Self:
        """Physical options: ``replicas``, ``batch_size``, ``recovery``, ``batching``, ``slow_start``, ``deadline_s``,
        ``max_in_flight``, ``max_ready_bytes``, and any option of a Ray actor. A second call adds to the first."""
        self._options = self._options | check_options(options, self.label, caller_line())
        return self

    def returns(self, count: int) -> Self:
        """The number of outputs: ``run`` returns that many columns, and a Call gives that many Ports."""
        self._outputs = _check_outputs(count, "returns", self.label, caller_line())
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A Call: one Port, or a tuple of them after ``returns(n)``.

        Arguments are Ports of one Domain (a keyword may carry a Port, too); every other keyword is static and
        reaches each ``run`` as it is.
        """
        trace = Trace.active(f"RayModule {self.label}")
        inputs: list[InputPlan] = []
        static: dict[str, Any] = {}
        for position, value in enumerate(args):
            what = f"argument {position} of {self.label}"
            if not isinstance(value, (Port, OptionalPort)):
                raise compile_error(
                    f"{what} must be a Port, not {type(value).__name__}",
                    f"Pass static values by keyword: self.module(x, name={value!r})."
                    if isinstance(value, (str, int, float, bool, type(None)))
                    else "Pass static values by keyword, and constructor arguments with pre_init(...).",
                )
            inputs.append(_input(trace, value, what, ""))
        for name, value in kwargs.items():
            if isinstance(value, (Port, OptionalPort)):
                inputs.append(_input(trace, value, f"argument {name!r} of {self.label}", name))
                continue
            if _holds_port(value):
                raise compile_error(
                    f"static argument {name!r} of {self.label} holds a Port inside a {type(value).__name__}",
                    "Pass each Port as an argument of its own.",
                )
            static[name] = own(value)
        if not inputs:
            raise compile_error(
                f"{self.label} was called without a Port",
                "A Call needs at least one Port: it says for which Entities to run.",
            )
        domain = trace.same_domain(
            [i.port for i in inputs],
            f"the arguments of {self.label}",
            "Bring an ancestor's value down with F.broadcast(x, like=y), or children up with F.reduce(y).",
        )
        self._check_arguments(len(args), [i.name for i in inputs if i.name], static)
        ports = trace.add_call(
            self,
            module_name(trace.owner, self) or self.label,
            self._outputs,
            tuple(inputs),
            domain,
            tuple(sorted(static.items())),
        )
        return ports if self._outputs > 1 else ports[0]

    def _check_arguments(self, positional: int, named: list[str], static: dict[str, Any]) -> None:
        entry = entry_of(self._udf)
        try:
            signature = inspect.signature(entry)
        except (TypeError, ValueError):
            return
        bound = (None,) if isinstance(self._udf, type) and _takes_self(self._udf) else ()
        try:
            signature.bind(*bound, *([None] * positional), **dict.fromkeys([*named, *static]))
        except TypeError as error:
            raise compile_error(
                f"{self.label} cannot be called like this: {error}", f"Its run is {entry.__name__}{signature}."
            ) from None


def entry_of(udf: Any) -> Any:
    """What a worker calls: ``run`` of the Function, or else the Function itself."""
    run = getattr(udf, "run", None)
    if callable(run):
        return run
    return udf.__call__ if isinstance(udf, type) else udf


def _in_class(udf: type, name: str) -> Any:
    """The class's own attribute, not one of its metaclass."""
    return next((vars(kind)[name] for kind in udf.__mro__ if name in vars(kind)), None)


def _takes_self(udf: type) -> bool:
    raw = _in_class(udf, "run") or _in_class(udf, "__call__")
    return not isinstance(raw, (staticmethod, classmethod))


def _check_function(udf: Any, where: SourceLine | None) -> None:
    if isinstance(udf, type):
        usable = callable(getattr(udf, "run", None)) or callable(_in_class(udf, "__call__"))
        name = udf.__name__
    else:
        usable = callable(getattr(udf, "run", None)) or callable(udf)
        name = repr(udf)[:60]
    if isinstance(udf, RayModule):
        raise compile_error(f"{udf.label} is a RayModule already", "Use it as it is.", where)
    if not usable:
        raise compile_error(
            f"{name} is no Function: it has no run method",
            "Write a class with run(self, batch) that returns a list with one result for each element of the batch.",
            where,
        )
    run = entry_of(udf)
    if inspect.iscoroutinefunction(run) or inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
        kind = "a generator" if inspect.isgeneratorfunction(run) else "async"
        raise compile_error(
            f"run of {name} is {kind}", "Write a plain method that returns a list for the whole batch.", where
        )


def _check_outputs(count: Any, what: str, label: str, where: SourceLine | None) -> int:
    if type(count) is not int or count < 1:
        raise compile_error(
            f"{what} of {label} must be a positive integer, not {count!r}", "Write .returns(2) for two outputs.", where
        )
    return count


def _input(trace: Trace, value: Port | OptionalPort, what: str, name: str) -> InputPlan:
    if isinstance(value, OptionalPort):
        return InputPlan(trace.own(value.port, what), True, name)
    return InputPlan(trace.own(value, what), False, name)


def _holds_port(value: Any) -> bool:
    if isinstance(value, (Port, OptionalPort)):
        return True
    if is_dict(value):
        return any(_holds_port(v) for v in value.values())
    return (is_list(value) or is_set(value)) and any(_holds_port(v) for v in value)


def module_name(owner: object, module: RayModule) -> str:
    """The attribute of the pipeline that holds the module: ``ocr``, ``heads[0]``, ``layout.ocr``; else empty."""
    return _find(owner, module, 3)


def _find(holder: object, module: RayModule, depth: int) -> str:
    items: list[tuple[str, Any]]
    if is_dict(holder):
        items = [(f"[{key}]", value) for key, value in holder.items()]
    elif is_list(holder):
        items = [(f"[{i}]", value) for i, value in enumerate(holder)]
    else:
        names: dict[str, Any] = {}
        for kind in reversed(type(holder).__mro__):
            names |= vars(kind)
        names |= getattr(holder, "__dict__", {})
        items = [(f".{name}", value) for name, value in names.items() if not name.startswith("__")]
    for name, value in items:
        if value is module:
            return name.removeprefix(".")
    if depth:
        for name, value in items:
            if is_dict(value) or is_list(value) or hasattr(value, "forward"):
                inner = _find(value, module, depth - 1)
                if inner:
                    joint = "" if inner.startswith("[") else "."
                    return f"{name.removeprefix('.')}{joint}{inner}"
    return ""


@overload
def function(fn: Callable[..., Any], *, num_outputs: int = 1) -> RayModule: ...
@overload
def function(fn: None = None, *, num_outputs: int = 1) -> Callable[[Callable[..., Any]], RayModule]: ...
def function(
    fn: Callable[..., Any] | None = None, *, num_outputs: int = 1
) -> RayModule | Callable[[Callable[..., Any]], RayModule]:
    """Makes a RayModule of a plain function; also as a decorator, with or without arguments."""
    if fn is not None:
        return RayModule(fn, num_outputs=num_outputs)

    def adapt(given: Callable[..., Any]) -> RayModule:
        return RayModule(given, num_outputs=num_outputs)

    return adapt
