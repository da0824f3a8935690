"""Commands for policies, parameters and limits."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import UNAVAILABLE
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Message, Output, Rows
from leveret.cli.ctl.metadata.users import table

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

POLICIES: Final = "Policies"
PARAMETERS: Final = "Parameters"
VHOSTS: Final = "Virtual hosts"
USERS: Final = "Users"
POLICY_COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


def _json(session: Session, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        session.show_banner()
        raise Failed(UNAVAILABLE, f"JSON decoding error. Reason: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# -- Policies ------------------------------------------------------------------------------------------------------


def _set_policy(session: Session, given: Given, operator: bool) -> Output:
    name, pattern, definition = given.words
    priority = given.text("priority", "0")
    kind = "operator policy override" if operator else "policy"
    session.banner(
        f'Setting {kind} "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
        f'for vhost "{given.vhost}" ...'
    )
    arguments = {
        "vhost": given.vhost,
        "name": name,
        "pattern": pattern,
        "apply_to": given.text("apply-to", "all"),
        "priority": int(priority),
        "definition": _json(session, definition),
        "operator": operator,
    }
    for note in session.ask("set_policy", arguments):
        session.warn(f"Warning: {note}")
    return None


def set_policy(session: Session, given: Given) -> Output:
    return _set_policy(session, given, operator=False)


def set_operator_policy(session: Session, given: Given) -> Output:
    return _set_policy(session, given, operator=True)


def clear_policy(session: Session, given: Given) -> Output:
    session.banner(f'Clearing policy "{given.words[0]}" on vhost "{given.vhost}" ...')
    session.ask("clear_policy", {"vhost": given.vhost, "name": given.words[0], "operator": False})
    return None


def clear_operator_policy(session: Session, given: Given) -> Output:
    session.banner(f'Clearing operator policy "{given.words[0]}" on vhost "{given.vhost}" ...')
    session.ask("clear_policy", {"vhost": given.vhost, "name": given.words[0], "operator": True})
    return None


def list_policies(session: Session, given: Given) -> Output:
    session.banner(f'Listing policies for vhost "{given.vhost}" ...')
    return table(session, "list_policies", POLICY_COLUMNS, {"vhost": given.vhost, "operator": False})


def list_operator_policies(session: Session, given: Given) -> Output:
    session.banner(f'Listing operator policy overrides for vhost "{given.vhost}" ...')
    return table(session, "list_policies", POLICY_COLUMNS, {"vhost": given.vhost, "operator": True})


# -- Tracing -------------------------------------------------------------------------------------------------------


def trace_on(session: Session, given: Given) -> Output:
    session.banner(f'Starting tracing for vhost "{given.vhost}" ...')
    session.ask("set_tracing", {"vhost": given.vhost, "on": True})
    return Message(f"Trace enabled for vhost {given.vhost}")


def trace_off(session: Session, given: Given) -> Output:
    session.banner(f'Stopping tracing for vhost "{given.vhost}" ...')
    session.ask("set_tracing", {"vhost": given.vhost, "on": False})
    return Message(f"Trace disabled for vhost {given.vhost}")


# -- Parameters ----------------------------------------------------------------------------------------------------


def set_parameter(session: Session, given: Given) -> Output:
    component, name, value = given.words
    shown = re.sub(r"(?<=://)[^\s\"?]*@", "", value)  # User and password of a URI are nobody's business.
    session.banner(
        f'Setting runtime parameter "{name}" for component "{component}" to "{shown}" in vhost "{given.vhost}" ...'
    )
    arguments = {"vhost": given.vhost, "component": component, "name": name, "value": _json(session, value)}
    session.ask("set_parameter", arguments)
    return None


def clear_parameter(session: Session, given: Given) -> Output:
    component, name = given.words
    session.banner(f'Clearing runtime parameter "{name}" for component "{component}" on vhost "{given.vhost}" ...')
    session.ask("clear_parameter", {"vhost": given.vhost, "component": component, "name": name})
    return None


def list_parameters(session: Session, given: Given) -> Output:
    session.banner(f'Listing runtime parameters for vhost "{given.vhost}" ...')
    return table(session, "list_parameters", ("component", "name", "value"), {"vhost": given.vhost})


def set_global_parameter(session: Session, given: Given) -> Output:
    name, value = given.words
    session.banner(f'Setting global runtime parameter "{name}" to "{value}" ...')
    session.ask("set_global_parameter", {"name": name, "value": _json(session, value)})
    return None


def clear_global_parameter(session: Session, given: Given) -> Output:
    session.banner(f'Clearing global runtime parameter "{given.words[0]}" ...')
    session.ask("clear_global_parameter", {"name": given.words[0]})
    return None


def list_global_parameters(session: Session, given: Given) -> Output:
    session.banner("Listing global runtime parameters ...")
    return table(session, "list_global_parameters", ("name", "value"))


# -- Limits --------------------------------------------------------------------------------------------------------


def _limits(session: Session, text: str) -> dict[str, Any]:
    limits = _json(session, text)
    if not isinstance(limits, dict):
        session.show_banner()
        raise Failed(UNAVAILABLE, 'limits must be a JSON object, for example {"max-connections": 100}')
    return limits


def set_vhost_limits(session: Session, given: Given) -> Output:
    session.banner(f'Setting vhost limits to "{given.words[0]}" for vhost "{given.vhost}" ...')
    session.ask("set_vhost_limits", {"vhost": given.vhost, "limits": _limits(session, given.words[0])})
    return None


def clear_vhost_limits(session: Session, given: Given) -> Output:
    session.banner(f'Clearing vhost "{given.vhost}" limits ...')
    session.ask("clear_vhost_limits", {"vhost": given.vhost})
    return None


def list_vhost_limits(session: Session, given: Given) -> Output:
    if given.flag("global"):
        session.banner("Listing limits for all vhosts ...")
        return table(session, "list_vhost_limits", ("vhost", "limits"), {"vhost": None})
    session.banner(f'Listing limits for vhost "{given.vhost}" ...')
    found = session.ask("list_vhost_limits", {"vhost": given.vhost})
    return Message(found[0]["limits"]) if found else Rows(("vhost", "limits"), [])


def set_user_limits(session: Session, given: Given) -> Output:
    user, limits = given.words
    session.banner(f'Setting user limits to "{limits}" for user "{user}" ...')
    session.ask("set_user_limits", {"user": user, "limits": _limits(session, limits)})
    return None


def clear_user_limits(session: Session, given: Given) -> Output:
    user, name = given.words
    what = "all limits" if name == "all" else f'"{name}" limit'
    session.banner(f'Clearing {what} for user "{user}" ...')
    session.ask("clear_user_limits", {"user": user, "name": name})
    return None


def list_user_limits(session: Session, given: Given) -> Output:
    if given.flag("global"):
        session.banner("Listing limits for all users ...")
        return table(session, "list_user_limits", ("user", "limits"), {"user": None})
    user = given.text("user", "guest")
    session.banner(f'Listing limits for user "{user}" ...')
    return Message(session.ask("list_user_limits", {"user": user})[0]["limits"])


POLICY_SWITCHES: Final[dict[str, str | None]] = {**VHOST, "priority": "priority", "apply-to": "apply-to"}
POLICY_USAGE: Final = "[--vhost <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>"

COMMANDS: Final = (
    Command(
        "clear_operator_policy", POLICIES, "[--vhost <vhost>] <name>", "Clears an operator policy",
        "leveretctl clear_operator_policy short-lived", clear_operator_policy, 1, 1, VHOST,
    ),
    Command(
        "clear_policy", POLICIES, "[--vhost <vhost>] <name>", "Clears (removes) a policy",
        "leveretctl clear_policy ha-all", clear_policy, 1, 1, VHOST,
    ),
    Command(
        "list_operator_policies", POLICIES, "[--vhost <vhost>] [--no-table-headers]",
        "Lists operator policy overrides for a virtual host", "leveretctl list_operator_policies",
        list_operator_policies, switches=VHOST,
    ),
    Command(
        "list_policies", POLICIES, "[--vhost <vhost>] [--no-table-headers]", "Lists all policies in a virtual host",
        "leveretctl list_policies -p shop", list_policies, switches=VHOST,
    ),
    Command(
        "set_operator_policy", POLICIES, POLICY_USAGE,
        "Sets an operator policy that overrides a subset of arguments in user policies",
        "leveretctl set_operator_policy short-lived '^tmp' '{\"expires\":60000}' --apply-to queues",
        set_operator_policy, 3, 3, POLICY_SWITCHES,
    ),
    Command(
        "set_policy", POLICIES, POLICY_USAGE, "Sets or updates a policy",
        "leveretctl set_policy ha-all '^ha[.]' '{\"ha-mode\":\"all\"}' --priority 1 --apply-to queues",
        set_policy, 3, 3, POLICY_SWITCHES,
        more="<pattern> is a regular expression for names, <definition> a JSON object. --apply-to is queues, "
        "exchanges, all, or a type of queue: classic_queues, quorum_queues or streams. Of several policies that "
        "match, only the one with the highest priority applies.",
    ),
    Command(
        "clear_global_parameter", PARAMETERS, "<name>", "Clears a global runtime parameter",
        "leveretctl clear_global_parameter motto", clear_global_parameter, 1, 1,
    ),
    Command(
        "clear_parameter", PARAMETERS, "[--vhost <vhost>] <component_name> <name>", "Clears a runtime parameter.",
        "leveretctl clear_parameter shovel nightly", clear_parameter, 2, 2, VHOST,
    ),
    Command(
        "list_global_parameters", PARAMETERS, "[--no-table-headers]", "Lists global runtime parameters",
        "leveretctl list_global_parameters", list_global_parameters,
    ),
    Command(
        "list_parameters", PARAMETERS, "[--vhost <vhost>] [--no-table-headers]",
        "Lists runtime parameters for a virtual host", "leveretctl list_parameters", list_parameters, switches=VHOST,
    ),
    Command(
        "set_global_parameter", PARAMETERS, "<name> <value>", "Sets a runtime parameter.",
        "leveretctl set_global_parameter motto '\"festina lente\"'", set_global_parameter, 2, 2,
    ),
    Command(
        "set_parameter", PARAMETERS, "[--vhost <vhost>] <component_name> <name> <value>", "Sets a runtime parameter.",
        "leveretctl set_parameter shovel nightly "
        "'{\"src-uri\":\"amqp://\",\"src-queue\":\"a\",\"dest-uri\":\"amqp://far\",\"dest-queue\":\"b\"}'",
        set_parameter, 3, 3, VHOST, more="Components with parameters: shovel, "
        "federation-upstream, federation-upstream-set.",
    ),
    Command(
        "clear_user_limits", USERS, "<username> <limit_type> | all", "Clears user connection/channel limits",
        "leveretctl clear_user_limits ann all", clear_user_limits, 2, 2,
    ),
    Command(
        "list_user_limits", USERS, "[--user <username>] [--global]", "Displays configured user limits",
        "leveretctl list_user_limits --global", list_user_limits, switches={"user": "username", "global": None},
    ),
    Command(
        "set_user_limits", USERS, "<username> <definition>", "Sets user limits",
        "leveretctl set_user_limits ann '{\"max-connections\":10}'", set_user_limits, 2, 2,
    ),
    Command(
        "clear_vhost_limits", VHOSTS, "[--vhost <vhost>]", "Clears virtual host limits",
        "leveretctl clear_vhost_limits -p shop", clear_vhost_limits, switches=VHOST,
    ),
    Command(
        "list_vhost_limits", VHOSTS, "[--vhost <vhost>] [--global]", "Displays configured virtual host limits",
        "leveretctl list_vhost_limits --global", list_vhost_limits, switches={**VHOST, "global": None},
    ),
    Command(
        "set_vhost_limits", VHOSTS, "[--vhost <vhost>] <definition>", "Sets virtual host limits",
        "leveretctl set_vhost_limits -p shop '{\"max-queues\":1000}'", set_vhost_limits, 1, 1, VHOST,
    ),
    Command(
        "trace_off", VHOSTS, "[--vhost <vhost>]", "Stops copying messages to the exchange amq.rabbitmq.trace",
        "leveretctl trace_off -p shop", trace_off, switches=VHOST,
    ),
    Command(
        "trace_on", VHOSTS, "[--vhost <vhost>]",
        "Starts copying all messages of the node's clients to the exchange amq.rabbitmq.trace",
        "leveretctl trace_on -p shop", trace_on, switches=VHOST,
        more="Bind a queue to the exchange with publish.<exchange>, deliver.<queue> or #. This slows down the node's "
        "clients in that virtual host, and ends when the node stops. It does not affect other nodes.",
    ),
)  # fmt: skip
