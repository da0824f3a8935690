"""Users, what they may do, and who it is that asks.

A password comes in a body over this port and leaves it as a hash; neither is ever logged. RabbitMQ shows hashes to
administrators, because tools copy users from one cluster to another by them.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from leveret.base.safe_regex import PATTERN_COST_MAX, error_of
from leveret.management.api.common import request_body
from leveret.management.api.common.base import Handlers, created, done
from leveret.management.http.http_messages import Problem, bad_request, json_response, not_found
from leveret.metadata.model import commands as c
from leveret.metadata.rules.passwords import SALT_BYTES, SHA256, hash_password, known_hashing
from leveret.metadata.rules.policy_validation import USER_LIMITS, limits_error

if TYPE_CHECKING:
    from leveret.management.http.http_messages import Request, Response
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import UserSpec

FORM_FIELDS_MAX: Final = 10
LOGIN_BYTES_MAX: Final = 16 << 10  # As much as the head of a request may have, which is the other way to say it.
BULK_MAX: Final = 10_000
PATTERNS: Final = ("configure", "write", "read")


class UserHandlers(Handlers):
    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/whoami", self.whoami)
        router.add("GET", "/api/auth", self.auth)
        router.add("POST", "/api/login", self.login, LOGIN_BYTES_MAX)
        router.add("GET", "/api/auth/hash_password/{password}", self.hash_password)
        router.add("GET", "/api/users", self.users)
        router.add("GET", "/api/users/without-permissions", self.without_permissions)
        router.add("POST", "/api/users/bulk-delete", self.bulk_delete)
        router.add("GET", "/api/users/{user}", self.user)
        router.add("PUT", "/api/users/{user}", self.put_user)
        router.add("DELETE", "/api/users/{user}", self.delete_user)
        router.add("GET", "/api/users/{user}/permissions", self.permissions_of_user)
        router.add("GET", "/api/users/{user}/topic-permissions", self.topic_permissions_of_user)
        router.add("GET", "/api/user-limits", self.limits)
        router.add("GET", "/api/user-limits/{user}", self.limits)
        router.add("PUT", "/api/user-limits/{user}/{limit}", self.put_limit)
        router.add("DELETE", "/api/user-limits/{user}/{limit}", self.delete_limit)
        router.add("GET", "/api/permissions", self.permissions)
        router.add("GET", "/api/permissions/{vhost}/{user}", self.permission)
        router.add("PUT", "/api/permissions/{vhost}/{user}", self.put_permission)
        router.add("DELETE", "/api/permissions/{vhost}/{user}", self.delete_permission)
        router.add("GET", "/api/topic-permissions", self.topic_permissions)
        for path in ("/api/topic-permissions/{vhost}/{user}", "/api/topic-permissions/{vhost}/{user}/{exchange}"):
            router.add("GET", path, self.topic_permission)
            router.add("PUT", path, self.put_topic_permission)
            router.add("DELETE", path, self.delete_topic_permission)

    # -- Who asks ------------------------------------------------------------------------------------------------

    async def whoami(self, request: Request) -> Response:
        self.rights.check(request)
        return json_response({"name": request.user, "tags": list(self.rights.tags(request))})

    async def auth(self, request: Request) -> Response:
        """Tell anybody how to log in."""
        return json_response({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})

    async def login(self, request: Request) -> Response:
        """Check the credentials of a form. RabbitMQ sets a cookie that holds the password; this does not."""
        try:
            form = parse_qs(request.body.decode("utf-8", "replace"), max_num_fields=FORM_FIELDS_MAX)
        except ValueError:
            raise bad_request("the form has too many fields") from None
        user, password = form.get("username", [""])[-1], form.get("password", [""])[-1]
        self.management.gate.check_login(request, user, password)
        self.rights.check(request)
        return json_response("ok")

    async def hash_password(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        return json_response({"ok": hash_password(request.parameters["password"], secrets.token_bytes(SALT_BYTES))})

    # -- Users ---------------------------------------------------------------------------------------------------

    def _spec(self, request: Request) -> UserSpec:
        """Raises Problem."""
        self.rights.check_administrator(request)
        spec = self.metadata.users.get(request.parameters["user"])
        if spec is None:
            raise not_found()
        return spec

    async def users(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        return await self.listed(request, [_shown(spec) for _, spec in sorted(self.metadata.users.items())])

    async def without_permissions(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        those_with = {user for user, _ in self.metadata.permissions}
        found = [_shown(spec) for name, spec in sorted(self.metadata.users.items()) if name not in those_with]
        return await self.listed(request, found)

    async def user(self, request: Request) -> Response:
        return json_response(_shown(self._spec(request)))

    async def put_user(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        name = request.parameters["user"]
        body = await request_body.object_of(request)
        if "tags" not in body:
            raise bad_request("tags_not_present")
        password_hash, hashing = _hash_of(body)
        existed = name in self.metadata.users
        await self.change(c.PutUser(name, password_hash, hashing, request_body.tags(body["tags"])))
        return created(existed)

    async def delete_user(self, request: Request) -> Response:
        await self.change(c.DeleteUser(self._spec(request).name))
        return done()

    async def bulk_delete(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        names = (await request_body.object_of(request, "users"))["users"]
        if not isinstance(names, list) or len(names) > BULK_MAX or not all(isinstance(one, str) for one in names):
            raise bad_request(f"users must be a list of at most {BULK_MAX} names")
        for name in names:  # All of them, before any is deleted.
            if name not in self.metadata.users:
                raise request_body.reason("no_such_user", name)
        await self.to_the_end(self._delete(list(dict.fromkeys(names))))
        return done()

    async def _delete(self, names: list[str]) -> None:
        for name in names:
            await self.change(c.DeleteUser(name))

    # -- Limits --------------------------------------------------------------------------------------------------

    async def limits(self, request: Request) -> Response:
        """Administrators see all, others their own."""
        self.rights.check(request)
        wanted = request.parameters.get("user")
        if wanted is not None and wanted not in self.metadata.users:
            raise not_found()
        seen = self.metadata.users if self.rights.is_administrator(request) else {request.user}
        found = [
            {"user": name, "value": dict(spec.limits)}
            for name, spec in sorted(self.metadata.users.items())
            if spec.limits and name in seen and wanted in (None, name)
        ]
        return json_response(found)

    async def put_limit(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        user, limit = request.parameters["user"], request.parameters["limit"]
        value = (await request_body.object_of(request, "value"))["value"]
        if user not in self.metadata.users:
            raise request_body.reason("no_such_user", user)
        error = limits_error({limit: value}, USER_LIMITS, "user-limits")
        if error is not None:
            raise bad_request(error)
        await self.change(c.SetUserLimits(user, {limit: value}))
        return done()

    async def delete_limit(self, request: Request) -> Response:
        await self.change(c.ClearUserLimits(self._spec(request).name, request.parameters["limit"]))
        return done()

    # -- Permissions ---------------------------------------------------------------------------------------------

    def _permissions(self, user: str | None = None) -> list[dict[str, Any]]:
        kept = sorted(self.metadata.permissions.items())
        return [{"user": who, "vhost": vhost, **one._asdict()} for (who, vhost), one in kept if user in (None, who)]

    def _topic_permissions(self, user: str | None = None, vhost: str | None = None) -> list[dict[str, Any]]:
        return [
            {"user": who, "vhost": where, "exchange": exchange, **one._asdict()}
            for (who, where), kept in sorted(self.metadata.topic_permissions.items())
            if user in (None, who) and vhost in (None, where)
            for exchange, one in sorted(kept.items())
        ]

    async def permissions(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        return await self.listed(request, self._permissions())

    async def permissions_of_user(self, request: Request) -> Response:
        return await self.listed(request, self._permissions(self._spec(request).name))

    def _party(self, request: Request) -> tuple[str, str]:
        """Raises Problem if the path names a user or a vhost that does not exist."""
        self.rights.check_administrator(request)
        user, vhost = request.parameters["user"], request.parameters["vhost"]
        if user not in self.metadata.users or vhost not in self.metadata.vhosts:
            raise not_found()
        return user, vhost

    def _party_to_change(self, request: Request) -> tuple[str, str]:
        """The same, in RabbitMQ's words for a PUT."""
        try:
            return self._party(request)
        except Problem as problem:
            raise bad_request("vhost_or_user_not_found") if problem.status == 404 else problem from None

    async def permission(self, request: Request) -> Response:
        user, vhost = self._party(request)
        found = self.metadata.permissions.get((user, vhost))
        if found is None:
            raise not_found()
        return json_response({"user": user, "vhost": vhost, **found._asdict()})

    async def put_permission(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        body = await request_body.object_of(request, *PATTERNS)
        user, vhost = self._party_to_change(request)
        patterns = _patterns(body, *PATTERNS)
        existed = (user, vhost) in self.metadata.permissions
        await self.change(c.SetPermissions(user, vhost, *patterns))
        return created(existed)

    async def delete_permission(self, request: Request) -> Response:
        user, vhost = self._party(request)
        if (user, vhost) not in self.metadata.permissions:
            raise not_found()
        await self.change(c.ClearPermissions(user, vhost))
        return done()

    async def topic_permissions(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        return await self.listed(request, self._topic_permissions())

    async def topic_permissions_of_user(self, request: Request) -> Response:
        return await self.listed(request, self._topic_permissions(self._spec(request).name))

    async def topic_permission(self, request: Request) -> Response:
        """All of a user in a vhost: as in RabbitMQ, an exchange in the path matters to DELETE alone."""
        user, vhost = self._party(request)
        found = self._topic_permissions(user, vhost)
        if not found:
            raise not_found()
        return json_response(found)

    async def put_topic_permission(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        body = await request_body.object_of(request, "exchange", "write", "read")
        user, vhost = self._party_to_change(request)
        patterns = _patterns(body, "write", "read")
        existed = bool(self.metadata.topic_permissions.get((user, vhost)))
        await self.change(c.SetTopicPermissions(user, vhost, request_body.text(body, "exchange"), *patterns))
        return created(existed)

    async def delete_topic_permission(self, request: Request) -> Response:
        user, vhost = self._party(request)
        if (user, vhost) not in self.metadata.topic_permissions:
            raise not_found()
        await self.change(c.ClearTopicPermissions(user, vhost, request.parameters.get("exchange")))
        return done()


def _shown(spec: UserSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "password_hash": spec.password_hash,
        "hashing_algorithm": spec.hashing,
        "tags": list(spec.tags),
        "limits": dict(spec.limits),
    }


def _hash_of(body: dict[str, Any]) -> tuple[str, str]:
    """Return the password hash and its algorithm from a request body. Raises Problem, without the password."""
    if "password" in body and "password_hash" in body:
        raise bad_request("both_password_and_password_hash_are_provided")
    hashing = body.get("hashing_algorithm", SHA256)
    if not isinstance(hashing, str) or not known_hashing(hashing):
        raise bad_request(f"unknown password hashing {hashing}")
    if "password" in body:
        if not isinstance(body["password"], str):
            raise bad_request("password must be a string")
        return hash_password(body["password"], secrets.token_bytes(SALT_BYTES), hashing), hashing
    password_hash = body.get("password_hash", "")
    try:
        base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise request_body.reason("not_base64", password_hash) from None
    return password_hash, hashing


def _patterns(body: dict[str, Any], *names: str) -> tuple[str, ...]:
    """Raises Problem."""
    for name in names:
        pattern = body[name]
        if not isinstance(pattern, str):
            raise bad_request(f"{name} must be a regular expression")
        error = error_of(pattern, PATTERN_COST_MAX)
        if error is not None:
            raise request_body.reason("invalid_regexp", pattern, error)
    return tuple(body[name] for name in names)
