"""Commands for users, vhosts and permissions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import VALIDATION
from leveret.base.exit_codes import DATA_ERROR
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Message, Output, Rows
from leveret.node.admin.common import listing_columns as columns

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

USERS: Final = "Users"
ACCESS: Final = "Access Control"
VHOSTS: Final = "Virtual hosts"


def table(session: Session, command: str, shown: tuple[str, ...], arguments: dict[str, Any] | None = None) -> Rows:
    """A list that comes in one piece."""
    return Rows(shown, [[row[name] for name in shown] for row in session.ask(command, arguments)])


# -- Users ---------------------------------------------------------------------------------------------------------


def _password(session: Session, given: Given, place: int) -> str:
    if len(given.words) <= place:
        session.show_banner()
    return password(given, place)


def password(given: Given, place: int) -> str:
    """From the command line, or, where no other user of the machine can see it, from stdin."""
    if len(given.words) > place:
        return given.words[place]
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("Password: ")
    line = sys.stdin.readline()
    if not line:
        raise Failed(DATA_ERROR, "Password is not provided via argument or stdin")
    return line.removesuffix("\n")


def hashed(password: str) -> dict[str, str]:
    """The password itself does not travel."""
    import secrets

    from leveret.metadata.rules.passwords import SALT_BYTES, SHA256, hash_password

    return {"password_hash": hash_password(password, secrets.token_bytes(SALT_BYTES)), "hashing": SHA256}


def add_user(session: Session, given: Given) -> Output:
    name = given.words[0]
    if not name:
        raise Failed(DATA_ERROR, "Bad argument: user cannot be an empty string", VALIDATION)
    session.banner(f'Adding user "{name}" ...')
    session.ask("add_user", {"name": name, **hashed(_password(session, given, 1))})
    return Message(
        "Done. Don't forget to grant the user permissions to some virtual hosts! "
        "See 'leveretctl help set_permissions' to learn more."
    )


def change_password(session: Session, given: Given) -> Output:
    session.banner(f'Changing password for user "{given.words[0]}" ...')
    session.ask("change_password", {"name": given.words[0], **hashed(_password(session, given, 1))})
    return None


def clear_password(session: Session, given: Given) -> Output:
    session.banner(f'Clearing password for user "{given.words[0]}" ...')
    session.ask("clear_password", {"name": given.words[0]})
    return None


def authenticate_user(session: Session, given: Given) -> Output:
    session.banner(f'Authenticating user "{given.words[0]}" ...')
    session.ask("authenticate_user", {"name": given.words[0], "password": _password(session, given, 1)})
    return Message("Success")


def set_user_tags(session: Session, given: Given) -> Output:
    name, *tags = given.words
    session.banner(f'Setting tags for user "{name}" to [{", ".join(tags)}] ...')
    session.ask("set_user_tags", {"name": name, "tags": tags})
    return None


def delete_user(session: Session, given: Given) -> Output:
    session.banner(f'Deleting user "{given.words[0]}" ...')
    session.ask("delete_user", {"name": given.words[0]})
    return None


def list_users(session: Session, given: Given) -> Output:
    session.banner("Listing users ...")
    return table(session, "list_users", ("user", "tags"))


# -- Vhosts --------------------------------------------------------------------------------------------------------


def add_vhost(session: Session, given: Given) -> Output:
    session.banner(f'Adding vhost "{given.words[0]}" ...')
    description = given.switches.get("description")
    session.ask("add_vhost", {"name": given.words[0], "description": description, "tags": given.texts("tags")})
    return None


def delete_vhost(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.base.session import LIFE_PATIENCE_S  # Not before it is needed: help is to come at once.

    session.banner(f'Deleting vhost "{given.words[0]}" ...')
    session.ask("delete_vhost", {"name": given.words[0]}, LIFE_PATIENCE_S)
    return None


def set_vhost_tags(session: Session, given: Given) -> Output:
    name, *tags = given.words
    session.banner(f'Setting tags for virtual host "{name}" to [{", ".join(tags)}] ...')
    session.ask("set_vhost_tags", {"name": name, "tags": tags})
    return None


# -- Permissions ---------------------------------------------------------------------------------------------------


def set_permissions(session: Session, given: Given) -> Output:
    user, configure, write, read = given.words
    session.banner(f'Setting permissions for user "{user}" in vhost "{given.vhost}" ...')
    patterns = {"configure": configure, "write": write, "read": read}
    session.ask("set_permissions", {"user": user, "vhost": given.vhost, **patterns})
    return None


def clear_permissions(session: Session, given: Given) -> Output:
    user = given.words[0]
    session.banner(f'Clearing permissions for user "{user}" in vhost "{given.vhost}" ...')
    session.ask("clear_permissions", {"user": user, "vhost": given.vhost})
    return None


def list_permissions(session: Session, given: Given) -> Output:
    session.banner(f'Listing permissions for vhost "{given.vhost}" ...')
    return table(session, "list_permissions", ("user", "configure", "write", "read"), {"vhost": given.vhost})


def list_user_permissions(session: Session, given: Given) -> Output:
    session.banner(f'Listing permissions for user "{given.words[0]}" ...')
    return table(session, "list_user_permissions", ("vhost", "configure", "write", "read"), {"user": given.words[0]})


def set_topic_permissions(session: Session, given: Given) -> Output:
    user, exchange, write, read = given.words
    session.banner(f'Setting topic permissions on "{exchange}" for user "{user}" in vhost "{given.vhost}" ...')
    arguments = {"user": user, "vhost": given.vhost, "exchange": exchange, "write": write, "read": read}
    session.ask("set_topic_permissions", arguments)
    return None


def clear_topic_permissions(session: Session, given: Given) -> Output:
    user, *rest = given.words
    on = f' on "{rest[0]}"' if rest else ""
    session.banner(f'Clearing topic permissions{on} for user "{user}" in vhost "{given.vhost}" ...')
    arguments = {"user": user, "vhost": given.vhost, "exchange": rest[0] if rest else None}
    session.ask("clear_topic_permissions", arguments)
    return None


def list_topic_permissions(session: Session, given: Given) -> Output:
    session.banner(f'Listing topic permissions for vhost "{given.vhost}" ...')
    return table(session, "list_topic_permissions", ("user", "exchange", "write", "read"), {"vhost": given.vhost})


def list_user_topic_permissions(session: Session, given: Given) -> Output:
    session.banner(f'Listing topic permissions for user "{given.words[0]}" ...')
    shown = ("vhost", "exchange", "write", "read")
    return table(session, "list_user_topic_permissions", shown, {"user": given.words[0]})._replace(headers=False)


def list_vhosts(session: Session, given: Given) -> Output:
    session.banner("Listing vhosts ...")
    return session.rows("list_vhosts", tuple(given.words) or columns.VHOSTS_SHOWN)


PASSWORD_MORE: Final = "Without <password> it is asked for, or read from stdin: other users can see command lines."

COMMANDS: Final = (
    Command(
        "add_user", USERS, "<username> <password>",
        "Creates a new user. This user will have no permissions for any virtual hosts by default.",
        "leveretctl add_user ann < password.txt", add_user, 1, 2, more=PASSWORD_MORE, secret=1,
    ),
    Command(
        "authenticate_user", USERS, "<username> <password>",
        "Attempts to authenticate a user. Exits with a non-zero code if authentication fails.",
        "leveretctl authenticate_user ann < password.txt", authenticate_user, 1, 2, more=PASSWORD_MORE, secret=1,
    ),
    Command(
        "change_password", USERS, "<username> <password>", "Changes the user password",
        "leveretctl change_password ann < password.txt", change_password, 1, 2, more=PASSWORD_MORE, secret=1,
    ),
    Command(
        "clear_password", USERS, "<username>", "Clears (resets) password and disables password login for a user",
        "leveretctl clear_password ann", clear_password, 1, 1,
    ),
    Command(
        "delete_user", USERS, "<username>", "Removes a user, and closes its connections",
        "leveretctl delete_user ann", delete_user, 1, 1,
    ),
    Command("list_users", USERS, "[--no-table-headers]", "List user names and tags", "leveretctl list_users",
            list_users),
    Command(
        "set_user_tags", USERS, "<username> <tag> [...]", "Sets user tags; without tags, removes them all",
        "leveretctl set_user_tags ann administrator", set_user_tags, 1, None,
    ),
    Command(
        "clear_permissions", ACCESS, "[--vhost <vhost>] <username>", "Revokes user permissions for a vhost",
        "leveretctl clear_permissions -p shop ann", clear_permissions, 1, 1, VHOST,
    ),
    Command(
        "clear_topic_permissions", ACCESS, "[--vhost <vhost>] <username> [<exchange>]",
        "Clears user topic permissions for a vhost or exchange",
        "leveretctl clear_topic_permissions -p shop ann amq.topic", clear_topic_permissions, 1, 2, VHOST,
    ),
    Command(
        "list_permissions", ACCESS, "[--vhost <vhost>] [--no-table-headers]",
        "Lists user permissions in a virtual host", "leveretctl list_permissions -p shop", list_permissions,
        switches=VHOST,
    ),
    Command(
        "list_topic_permissions", ACCESS, "[--vhost <vhost>] [--no-table-headers]",
        "Lists topic permissions in a virtual host", "leveretctl list_topic_permissions -p shop",
        list_topic_permissions, switches=VHOST,
    ),
    Command(
        "list_user_permissions", ACCESS, "[--no-table-headers] <username>",
        "Lists permissions of a user across all virtual hosts", "leveretctl list_user_permissions ann",
        list_user_permissions, 1, 1,
    ),
    Command(
        "list_user_topic_permissions", ACCESS, "[--no-table-headers] <username>", "Lists user topic permissions",
        "leveretctl list_user_topic_permissions ann", list_user_topic_permissions, 1, 1,
    ),
    Command(
        "list_vhosts", ACCESS, "[--no-table-headers] [<column> ...] [--timeout <timeout>]", "Lists virtual hosts",
        "leveretctl list_vhosts name description tags", list_vhosts, 0, None, columns=columns.VHOSTS,
    ),
    Command(
        "set_permissions", ACCESS, "[--vhost <vhost>] <username> <conf> <write> <read>",
        "Sets user permissions for a vhost",
        "leveretctl set_permissions -p shop ann '^ann-.*' '.*' '.*'", set_permissions, 4, 4, VHOST,
        more="Three regular expressions for names: what the user may declare and delete (configure), publish to or "
        "bind (write), and consume from or bind to (read). '.*' matches everything, '^$' nothing.",
    ),
    Command(
        "set_topic_permissions", ACCESS, "[--vhost <vhost>] <username> <exchange> <write> <read>",
        "Sets user topic permissions for an exchange",
        "leveretctl set_topic_permissions -p shop ann amq.topic '^{username}[.]' '.*'", set_topic_permissions, 4, 4,
        VHOST,
    ),
    Command(
        "add_vhost", VHOSTS, "<vhost> [--description <description>] [--tags <tag>,<tag>,...]",
        "Creates a virtual host", "leveretctl add_vhost shop --description 'orders and carts'", add_vhost, 1, 1,
        {"description": "description", "tags": "tags"},
    ),
    Command(
        "delete_vhost", VHOSTS, "<vhost>", "Deletes a virtual host and everything in it",
        "leveretctl delete_vhost shop", delete_vhost, 1, 1,
    ),
    Command(
        "set_vhost_tags", VHOSTS, "<vhost> <tag> [...]", "Sets virtual host tags",
        "leveretctl set_vhost_tags shop eu production", set_vhost_tags, 1, None,
    ),
)  # fmt: skip
