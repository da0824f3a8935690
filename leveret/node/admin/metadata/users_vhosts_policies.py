"""Control commands that change or show users, vhosts, permissions, policies and parameters.

The texts and the exit codes are those of rabbitmqctl 3.10, its oddities included where a script could depend on them: a
vhost that does not exist is 65 for most commands and 69 for `set_permissions`, a user 67 or 69. Only where rabbitmqctl
shows an Erlang term, a sentence is shown here.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NoReturn

from leveret.base.control_protocol import PLAIN
from leveret.base.exit_codes import DATA_ERROR, NO_USER, SOFTWARE, UNAVAILABLE
from leveret.base.json_values import Json
from leveret.base.safe_regex import PATTERN_COST_MAX, cost_of, error_of
from leveret.broker import firehose
from leveret.metadata.federation import parameters as federation
from leveret.metadata.model import commands as c
from leveret.metadata.model.records import UserSpec
from leveret.metadata.rules.global_parameters import is_internal, reserved_text
from leveret.metadata.rules.passwords import known_hashing, verify_password
from leveret.metadata.rules.policy_validation import (
    USER_LIMITS,
    VHOST_LIMITS,
    limits_error,
    policy_error,
    policy_notes,
    unknown_keys,
)
from leveret.metadata.shovel.parameters import faults_of, redacted
from leveret.metadata.shovel.records import SHOVEL
from leveret.node.admin.common.command import ANYTHING, FLAG, NUMBER, OBJECT, RUNNING, TEXT, TEXTS, Commands, Refused
from leveret.node.cluster import bulk_delete

if TYPE_CHECKING:
    from leveret.metadata.model.records import Policy
    from leveret.node.admin.dispatch import Control

logger = logging.getLogger("leveret")

COMMANDS = Commands()

# Parameters by which the node itself is meant; they have commands of their own.
POLICY, OPERATOR_POLICY = "policy", "operator_policy"
RESERVED_COMPONENTS = {POLICY: "policies", OPERATOR_POLICY: "operator policies"}
LIMIT_COMPONENTS = ("vhost-limits",)


# -- Users ---------------------------------------------------------------------------------------------------------


def _user(control: Control, name: str, code: int = NO_USER) -> UserSpec:
    user = control.node.metadata.users.get(name)
    if user is None:
        raise Refused(code, f'User "{name}" does not exist')
    return user


def _check_hash(password_hash: str, hashing: str) -> None:
    if not known_hashing(hashing):
        raise Refused(DATA_ERROR, f"unknown password hashing {hashing}")


@COMMANDS.add(name=TEXT, password_hash=TEXT, hashing=TEXT)
async def add_user(control: Control, name: str, password_hash: str, hashing: str) -> None:
    _check_hash(password_hash, hashing)
    if not name:
        raise Refused(DATA_ERROR, "Bad argument: user cannot be an empty string")
    if name in control.node.metadata.users:
        raise Refused(SOFTWARE, f'User "{name}" already exists')
    await control.change(c.PutUser(name, password_hash, hashing))


@COMMANDS.add(name=TEXT, password_hash=TEXT, hashing=TEXT)
async def change_password(control: Control, name: str, password_hash: str, hashing: str) -> None:
    _check_hash(password_hash, hashing)
    user = _user(control, name)
    await control.change(c.PutUser(name, password_hash, hashing, user.tags))


@COMMANDS.add(name=TEXT)
async def clear_password(control: Control, name: str) -> None:
    user = _user(control, name)
    await control.change(c.PutUser(name, "", user.hashing, user.tags))


@COMMANDS.add(name=TEXT, tags=TEXTS)
async def set_user_tags(control: Control, name: str, tags: list[str]) -> None:
    user = _user(control, name)
    await control.change(c.PutUser(name, user.password_hash, user.hashing, tuple(dict.fromkeys(tags))))


@COMMANDS.add(name=TEXT)
async def delete_user(control: Control, name: str) -> None:
    _user(control, name)
    await control.change(c.DeleteUser(name))


@COMMANDS.add(name=TEXT, password=TEXT)
async def authenticate_user(control: Control, name: str, password: str) -> None:
    user = control.node.metadata.users.get(name)
    if user is None or not verify_password(password, user.password_hash, user.hashing):
        # The same text for a user that does not exist, so that it does not reveal which users do.
        text = f"Error: failed to authenticate user \"{name}\"\nuser '{name}' - invalid credentials"
        raise Refused(DATA_ERROR, text)


@COMMANDS.add()
async def list_users(control: Control) -> Any:
    users = control.node.metadata.users.values()
    return [{"user": user.name, "tags": list(user.tags)} for user in users]


# -- Vhosts --------------------------------------------------------------------------------------------------------


def check_vhost(control: Control, vhost: str) -> None:
    if vhost not in control.node.metadata.vhosts:
        raise Refused(DATA_ERROR, f"Virtual host '{vhost}' does not exist", PLAIN)


@COMMANDS.add(RUNNING, vhost=TEXT, on=FLAG)
async def set_tracing(control: Control, vhost: str, on: bool) -> None:
    """Switches tracing on or off, for this node's clients only, and until the node stops; so it is not in the
    metadata."""
    check_vhost(control, vhost)
    firehose.trace(control.node.broker, vhost, on)


@COMMANDS.add(RUNNING, vhost=TEXT)
async def local_tracing(control: Control, vhost: str) -> bool:
    """Returns whether the firehose of a vhost is on at this node."""
    return firehose.is_traced(control.node.broker, vhost)


@COMMANDS.add(name=TEXT, description=TEXT.or_none(), tags=TEXTS.or_none())
async def add_vhost(control: Control, name: str, description: str | None, tags: list[str] | None) -> None:
    existing = control.node.metadata.vhosts.get(name)
    if existing is not None:  # No error: it keeps its fields, except those that are given.
        description = existing.description if description is None else description
        tags = list(existing.tags) if tags is None else tags
    await control.change(c.AddVhost(name, description or "", tuple(tags or ())))


@COMMANDS.add(name=TEXT, tags=TEXTS)
async def set_vhost_tags(control: Control, name: str, tags: list[str]) -> None:
    vhost = control.node.metadata.vhosts.get(name)
    if vhost is None:
        raise Refused(DATA_ERROR, f'Virtual host "{name}" does not exist')
    await control.change(c.AddVhost(name, vhost.description, tuple(dict.fromkeys(tags))))


@COMMANDS.add(name=TEXT)
async def delete_vhost(control: Control, name: str) -> None:
    check_vhost(control, name)
    await control.agreed(bulk_delete.delete_vhost(control.node.cluster, control.node.metadata, name))


# -- Permissions ---------------------------------------------------------------------------------------------------


def _check_party(control: Control, user: str, vhost: str) -> None:
    metadata = control.node.metadata
    if user not in metadata.users:
        raise Refused(NO_USER, f"User {user} does not exist")
    if vhost not in metadata.vhosts:
        raise Refused(UNAVAILABLE, f"Virtual host {vhost} does not exist")


def _check_patterns(*patterns: str) -> None:
    for pattern in patterns:
        error = error_of(pattern, PATTERN_COST_MAX)
        if error is not None:
            raise Refused(UNAVAILABLE, f"regular expression '{pattern}' is invalid: {error}")


@COMMANDS.add(user=TEXT, vhost=TEXT, configure=TEXT, write=TEXT, read=TEXT)
async def set_permissions(control: Control, user: str, vhost: str, configure: str, write: str, read: str) -> None:
    _check_party(control, user, vhost)
    _check_patterns(configure, write, read)
    await control.change(c.SetPermissions(user, vhost, configure, write, read))


@COMMANDS.add(user=TEXT, vhost=TEXT)
async def clear_permissions(control: Control, user: str, vhost: str) -> None:
    _check_party(control, user, vhost)
    await control.change(c.ClearPermissions(user, vhost))


@COMMANDS.add(vhost=TEXT)
async def list_permissions(control: Control, vhost: str) -> Any:
    check_vhost(control, vhost)
    kept = control.node.metadata.permissions.items()
    return [{"user": user, **permission._asdict()} for (user, where), permission in kept if where == vhost]


@COMMANDS.add(user=TEXT)
async def list_user_permissions(control: Control, user: str) -> Any:
    _user(control, user, UNAVAILABLE)
    kept = control.node.metadata.permissions.items()
    return [{"vhost": vhost, **permission._asdict()} for (who, vhost), permission in kept if who == user]


@COMMANDS.add(user=TEXT, vhost=TEXT, exchange=TEXT, write=TEXT, read=TEXT)
async def set_topic_permissions(control: Control, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
    _check_party(control, user, vhost)
    _check_patterns(write, read)
    await control.change(c.SetTopicPermissions(user, vhost, exchange, write, read))


@COMMANDS.add(user=TEXT, vhost=TEXT, exchange=TEXT.or_none())
async def clear_topic_permissions(control: Control, user: str, vhost: str, exchange: str | None) -> None:
    _check_party(control, user, vhost)
    await control.change(c.ClearTopicPermissions(user, vhost, exchange))


@COMMANDS.add(vhost=TEXT)
async def list_topic_permissions(control: Control, vhost: str) -> Any:
    check_vhost(control, vhost)
    return [
        {"user": user, "exchange": exchange, **permission._asdict()}
        for (user, where), kept in control.node.metadata.topic_permissions.items()
        if where == vhost
        for exchange, permission in kept.items()
    ]


@COMMANDS.add(user=TEXT)
async def list_user_topic_permissions(control: Control, user: str) -> Any:
    _user(control, user, UNAVAILABLE)
    return [
        {"vhost": vhost, "exchange": exchange, **permission._asdict()}
        for (who, vhost), kept in control.node.metadata.topic_permissions.items()
        if who == user
        for exchange, permission in kept.items()
    ]


# -- Policies ------------------------------------------------------------------------------------------------------


def _invalid(text: str) -> NoReturn:
    raise Refused(UNAVAILABLE, f"Validation failed\n\n{text}\n")


@COMMANDS.add(vhost=TEXT, name=TEXT, pattern=TEXT, apply_to=TEXT, priority=NUMBER, definition=ANYTHING, operator=FLAG)
async def set_policy(
    control: Control,
    vhost: str,
    name: str,
    pattern: str,
    apply_to: str,
    priority: int,
    definition: Json,
    operator: bool,
) -> list[str]:
    """Sets a policy, and returns warnings for the caller."""
    check_vhost(control, vhost)
    if not isinstance(definition, dict):
        _invalid("a policy's definition is a JSON object")
    error = policy_error(pattern, apply_to, definition, operator)
    if error is not None:
        _invalid("\n".join([error, *unknown_keys(definition, operator)]))
    await control.change(c.SetPolicy(vhost, name, pattern, apply_to, priority, definition, operator, cost_of(pattern)))
    notes = policy_notes(apply_to, definition)
    for note in notes:
        logger.warning("policy '%s' in vhost '%s': %s", name, vhost, note)
    return notes


@COMMANDS.add(vhost=TEXT, name=TEXT, operator=FLAG)
async def clear_policy(control: Control, vhost: str, name: str, operator: bool) -> None:
    metadata = control.node.metadata
    if (vhost, name) not in (metadata.operator_policies if operator else metadata.policies):
        _missing_parameter()
    await control.change(c.ClearPolicy(vhost, name, operator))


@COMMANDS.add(vhost=TEXT, operator=FLAG)
async def list_policies(control: Control, vhost: str, operator: bool) -> Any:
    check_vhost(control, vhost)
    metadata = control.node.metadata
    kept = metadata.operator_policies if operator else metadata.policies
    return [
        {
            "vhost": vhost,
            "name": policy.name,
            "pattern": policy.pattern,
            "apply-to": policy.apply_to,
            "definition": compact(policy.definition),
            "priority": policy.priority,
        }
        for policy in kept.values()
        if policy.vhost == vhost
    ]


def compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# -- Parameters ----------------------------------------------------------------------------------------------------


def _missing_parameter() -> NoReturn:
    raise Refused(UNAVAILABLE, "Parameter does not exist")


@COMMANDS.add(vhost=TEXT, component=TEXT, name=TEXT, value=ANYTHING)
async def set_parameter(control: Control, vhost: str, component: str, name: str, value: Json) -> None:
    check_vhost(control, vhost)
    if component in RESERVED_COMPONENTS:
        raise Refused(UNAVAILABLE, f"{RESERVED_COMPONENTS[component]} may not be set using this method")
    if component in LIMIT_COMPONENTS:
        raise Refused(UNAVAILABLE, "limits are set with set_vhost_limits")
    if component == SHOVEL:
        faults = faults_of(name, value)
        if faults:
            _invalid("\n".join(faults))
        await control.change(c.SetParameter(component, vhost, name, value))
        return
    if component in federation.COMPONENTS:
        faults = federation.faults_of(component, name, value, vhost)
        if faults:
            _invalid("\n".join(faults))
        await control.change(c.SetParameter(component, vhost, name, value))
        return
    _invalid(f"component {component} not found")


@COMMANDS.add(vhost=TEXT, component=TEXT, name=TEXT)
async def clear_parameter(control: Control, vhost: str, component: str, name: str) -> None:
    if (component, vhost, name) not in control.node.metadata.parameters:
        _missing_parameter()
    await control.change(c.ClearParameter(component, vhost, name))


@COMMANDS.add(vhost=TEXT)
async def list_parameters(control: Control, vhost: str) -> Any:
    """Returns the parameters. Limits and operator policies are among them, policies are not, as in RabbitMQ."""
    check_vhost(control, vhost)
    metadata = control.node.metadata
    found: list[tuple[str, str, Json]] = []
    if metadata.vhosts[vhost].limits:
        found.append((LIMIT_COMPONENTS[0], "limits", dict(metadata.vhosts[vhost].limits)))
    found += [(component, name, value) for (component, at, name), value in metadata.parameters.items() if at == vhost]
    operators = metadata.operator_policies.items()
    found += [(OPERATOR_POLICY, name, as_value(policy)) for (at, name), policy in operators if at == vhost]
    return [
        {"component": component, "name": name, "value": compact(redacted(value))} for component, name, value in found
    ]


def as_value(policy: Policy) -> dict[str, Json]:
    """Returns a policy as the value of a parameter."""
    return {
        "pattern": policy.pattern,
        "definition": dict(policy.definition),
        "priority": policy.priority,
        "apply-to": policy.apply_to,
    }


@COMMANDS.add(name=TEXT, value=ANYTHING)
async def set_global_parameter(control: Control, name: str, value: Json) -> None:
    if is_internal(name):
        _invalid(reserved_text(name))
    await control.change(c.SetGlobalParameter(name, value))


@COMMANDS.add(name=TEXT)
async def clear_global_parameter(control: Control, name: str) -> None:
    if is_internal(name):
        _invalid(reserved_text(name))
    if name not in control.node.metadata.global_parameters:
        _missing_parameter()
    await control.change(c.ClearGlobalParameter(name))


@COMMANDS.add()
async def list_global_parameters(control: Control) -> Any:
    kept = control.node.metadata.global_parameters.items()
    return [{"name": name, "value": compact(value)} for name, value in kept]


# -- Limits --------------------------------------------------------------------------------------------------------


@COMMANDS.add(vhost=TEXT, limits=OBJECT)
async def set_vhost_limits(control: Control, vhost: str, limits: dict[str, Any]) -> None:
    check_vhost(control, vhost)
    error = limits_error(limits, VHOST_LIMITS, "limits")
    if error is not None:
        _invalid(error)
    await control.change(c.SetVhostLimits(vhost, limits, replace=True))


@COMMANDS.add(vhost=TEXT)
async def clear_vhost_limits(control: Control, vhost: str) -> None:
    spec = control.node.metadata.vhosts.get(vhost)
    if spec is None or not spec.limits:
        _missing_parameter()
    await control.change(c.ClearVhostLimits(vhost))


@COMMANDS.add(vhost=TEXT.or_none())
async def list_vhost_limits(control: Control, vhost: str | None) -> Any:
    if vhost is not None:
        check_vhost(control, vhost)
    found = [spec for spec in control.node.metadata.vhosts.values() if vhost in (None, spec.name)]
    return [{"vhost": spec.name, "limits": compact(dict(spec.limits))} for spec in found if spec.limits]


@COMMANDS.add(user=TEXT, limits=OBJECT)
async def set_user_limits(control: Control, user: str, limits: dict[str, Any]) -> None:
    _user(control, user, UNAVAILABLE)
    error = limits_error(limits, USER_LIMITS, "user-limits")
    if error is not None:
        raise Refused(UNAVAILABLE, error)
    await control.change(c.SetUserLimits(user, limits))


@COMMANDS.add(user=TEXT, name=TEXT)
async def clear_user_limits(control: Control, user: str, name: str) -> None:
    _user(control, user, UNAVAILABLE)
    await control.change(c.ClearUserLimits(user, None if name == "all" else name))


@COMMANDS.add(user=TEXT.or_none())
async def list_user_limits(control: Control, user: str | None) -> Any:
    if user is not None:
        return [{"user": user, "limits": compact(dict(_user(control, user, UNAVAILABLE).limits))}]
    users = control.node.metadata.users.values()
    return [{"user": one.name, "limits": compact(dict(one.limits))} for one in users if one.limits]
