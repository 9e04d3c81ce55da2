"""The public error hierarchy: each error says whose fault it is, where, and what to do next."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Who has to act: the author of the program, the owner of the data, or the operator of the infrastructure."""

    PROGRAM = "program"
    DATA = "data"
    INFRASTRUCTURE = "infrastructure"


class RayorchFlowsError(Exception):
    """Base of every error that this project raises on purpose.

    Fields: ``message`` what happened, ``fault`` whose it is, ``where`` the place (a user's source line, a Call,
    a URI), ``next_step`` what to do about it.
    """

    fault: Fault = Fault.PROGRAM

    def __init__(self, message: str, *, where: str = "", next_step: str = "", fault: Fault | None = None) -> None:
        self.message = message
        self.where = where
        self.next_step = next_step
        if fault is not None:
            self.fault = fault
        super().__init__(message)

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.next_step:
            lines.append(f"  next: {self.next_step}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _rebuild,
            (type(self), self.message, self.where, self.next_step, self.fault),
        )


def _rebuild(
    kind: type[RayorchFlowsError], message: str, where: str, next_step: str, fault: Fault
) -> RayorchFlowsError:
    return kind(message, where=where, next_step=next_step, fault=fault)


class CompileError(RayorchFlowsError, ValueError):
    """A Pipeline breaks a rule that can be checked before anything runs."""


class ExecutionError(RayorchFlowsError, RuntimeError):
    """A run cannot go on under its compiled contract."""


class UsageError(RayorchFlowsError):
    """A command or an API was called with arguments that cannot work."""


class SourceError(RayorchFlowsError):
    """A source (folder, glob, URI) cannot be listed or read."""

    fault = Fault.DATA


class TableError(RayorchFlowsError):
    """The record table cannot be read, or a commit cannot be made."""

    fault = Fault.INFRASTRUCTURE


class InfrastructureError(RayorchFlowsError):
    """Ray, Prefect or the storage cannot do what is asked of it."""

    fault = Fault.INFRASTRUCTURE
