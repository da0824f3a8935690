"""Policies, operator policies, parameters, global parameters, and the cluster's name.

RabbitMQ has all of them in one table of parameters and lets some of it show: limits of vhosts are the parameter
`limits` of the component `vhost-limits`. There are no others here that anything would act on, so none can be set.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.base.safe_regex import cost_of
from leveret.management.api.common import request_body
from leveret.management.api.common.base import Handlers, created, done
from leveret.management.http.http_messages import bad_request, json_response, not_found
from leveret.metadata.definitions import VHOST_LIMITS as LIMITS
from leveret.metadata.federation import parameters as federation
from leveret.metadata.model import commands as c
from leveret.metadata.rules.global_parameters import (
    CLUSTER_NAME,
    cluster_name_fault,
    is_internal,
    needs_administrator,
    reserved_text,
)
from leveret.metadata.rules.placement import INTERNAL
from leveret.metadata.rules.policy_validation import VHOST_LIMITS, limits_error, policy_error, term
from leveret.metadata.shovel.parameters import faults_of, redacted
from leveret.metadata.shovel.records import SHOVEL
from leveret.node.admin.metadata.users_vhosts_policies import OPERATOR_POLICY, POLICY, RESERVED_COMPONENTS, as_value
from leveret.node.admin.nodes.cluster import cluster_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leveret.management.http.http_messages import Problem, Request, Response
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import Policy

PRIORITY_MAX: Final = (1 << 31) - 1


class PolicyHandlers(Handlers):
    def add_to(self, router: Router) -> None:
        for kind, operator in (("policies", False), ("operator-policies", True)):
            router.add("GET", f"/api/{kind}", partial(self.policies, operator))
            router.add("GET", f"/api/{kind}/{{vhost}}", partial(self.policies, operator))
            router.add("GET", f"/api/{kind}/{{vhost}}/{{name}}", partial(self.policy, operator))
            router.add("PUT", f"/api/{kind}/{{vhost}}/{{name}}", partial(self.put_policy, operator))
            router.add("DELETE", f"/api/{kind}/{{vhost}}/{{name}}", partial(self.delete_policy, operator))
        router.add("GET", "/api/parameters", self.parameters)
        router.add("GET", "/api/parameters/{component}", self.parameters)
        router.add("GET", "/api/parameters/{component}/{vhost}", self.parameters)
        router.add("GET", "/api/parameters/{component}/{vhost}/{name}", self.parameter)
        router.add("PUT", "/api/parameters/{component}/{vhost}/{name}", self.put_parameter)
        router.add("DELETE", "/api/parameters/{component}/{vhost}/{name}", self.delete_parameter)
        router.add("GET", "/api/global-parameters", self.global_parameters)
        router.add("GET", "/api/global-parameters/{name}", self.global_parameter)
        router.add("PUT", "/api/global-parameters/{name}", self.put_global_parameter)
        router.add("DELETE", "/api/global-parameters/{name}", self.delete_global_parameter)
        router.add("GET", "/api/cluster-name", self.cluster_name)
        router.add("PUT", "/api/cluster-name", self.put_cluster_name)

    # -- Policies ------------------------------------------------------------------------------------------------

    def _kept(self, operator: bool) -> dict[tuple[str, str], Policy]:
        return self.metadata.operator_policies if operator else self.metadata.policies

    def _check(self, operator: bool, request: Request) -> None:
        if operator:
            self.rights.check_administrator(request)
        else:
            self.rights.check_policymaker(request, request.parameters["vhost"])

    async def policies(self, operator: bool, request: Request) -> Response:
        self.rights.check(request)
        wanted = request.parameters.get("vhost")
        if wanted is not None:
            self.rights.check_vhost(request, wanted)
        found = [
            _shown(policy)
            for (vhost, _), policy in sorted(self._kept(operator).items(), key=lambda one: one[0])
            if wanted in (None, vhost) and self.rights.may_see(request, vhost)
        ]
        return await self.listed(request, found)

    def _policy(self, operator: bool, request: Request) -> Policy:
        """Raises Problem."""
        self._check(operator, request)
        found = self._kept(operator).get((request.parameters["vhost"], request.parameters["name"]))
        if found is None:
            raise not_found()
        return found

    async def policy(self, operator: bool, request: Request) -> Response:
        return json_response(_shown(self._policy(operator, request)))

    async def put_policy(self, operator: bool, request: Request) -> Response:
        self._check(operator, request)
        vhost, name = request.parameters["vhost"], request.parameters["name"]
        self.check_vhost_exists(vhost)
        body = await request_body.object_of(request, "pattern", "definition")
        pattern, definition = body["pattern"], body["definition"]
        priority, apply_to = body.get("priority", 0), body.get("apply-to", "all")
        if not isinstance(pattern, str):
            raise _invalid(f"pattern should be a binary but was {term(pattern)}")
        if not isinstance(definition, dict):
            raise _invalid("a policy's definition is a JSON object")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise _invalid(f"priority should be a number, actually was {term(priority)}")
        if abs(priority) > PRIORITY_MAX:
            raise _invalid(f"priority must be from {-PRIORITY_MAX} to {PRIORITY_MAX}")
        if not isinstance(apply_to, str):
            raise _invalid(f"apply-to should be a binary but was {term(apply_to)}")
        error = policy_error(pattern, apply_to, definition, operator)
        if error is not None:
            raise _invalid(error)
        existed = (vhost, name) in self._kept(operator)
        await self.change(c.SetPolicy(vhost, name, pattern, apply_to, priority, definition, operator, cost_of(pattern)))
        return created(existed)

    async def delete_policy(self, operator: bool, request: Request) -> Response:
        policy = self._policy(operator, request)
        await self.change(c.ClearPolicy(policy.vhost, policy.name, operator))
        return done()

    # -- Parameters ----------------------------------------------------------------------------------------------

    def _parameters(self, request: Request) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {"value": dict(spec.limits), "vhost": name, "component": LIMITS, "name": "limits"}
            for name, spec in sorted(self.metadata.vhosts.items())
            if spec.limits
        ]
        found += (
            {"value": redacted(value), "vhost": vhost, "component": component, "name": name}
            for (component, vhost, name), value in self.metadata.parameters.items()
            if component not in INTERNAL  # They have commands of their own.
        )
        found += _as_parameters(OPERATOR_POLICY, self.metadata.operator_policies)
        if request.parameters.get("component") == POLICY:  # Without the word RabbitMQ leaves those out.
            found += _as_parameters(POLICY, self.metadata.policies)
        return [
            one
            for one in found
            if all(one[key] == value for key, value in request.parameters.items())
            and self.rights.may_see(request, one["vhost"])
        ]

    async def parameters(self, request: Request) -> Response:
        self.rights.check_policymaker(request)
        if "vhost" in request.parameters:
            self.rights.check_vhost(request, request.parameters["vhost"])
        return await self.listed(request, self._parameters(request))

    def _parameter(self, request: Request) -> dict[str, Any]:
        """Raises Problem."""
        self.rights.check_policymaker(request, request.parameters["vhost"])
        found = self._parameters(request)
        if not found:
            raise not_found()
        return found[0]

    async def parameter(self, request: Request) -> Response:
        return json_response(self._parameter(request))

    async def put_parameter(self, request: Request) -> Response:
        component, vhost = request.parameters["component"], request.parameters["vhost"]
        self.rights.check_policymaker(request, vhost)
        self.check_vhost_exists(vhost)
        value = (await request_body.object_of(request, "value"))["value"]
        if component in RESERVED_COMPONENTS:
            raise bad_request(f"{RESERVED_COMPONENTS[component]} may not be set using this method")
        if component == SHOVEL:
            return await self._put_shovel(request, vhost, request.parameters["name"], value)
        if component in federation.COMPONENTS:
            return await self._put_upstream(request, component, vhost, request.parameters["name"], value)
        if component != LIMITS:
            raise _invalid(f"component {component} not found")
        self.rights.check_administrator(request)  # Else a policymaker could lift what was set against it.
        if not isinstance(value, dict):
            raise _invalid("limits are a JSON object")
        error = limits_error(value, VHOST_LIMITS, "limits")
        if error is not None:
            raise _invalid(error)
        existed = bool(self.metadata.vhosts[vhost].limits)
        await self.change(c.SetVhostLimits(vhost, value, replace=True))
        return created(existed)

    async def _put_shovel(self, request: Request, vhost: str, name: str, value: Any) -> Response:
        """Make or replace a shovel, whose direct ends have the rights of the user."""
        user, permissions = request.user, self.node.broker.permissions
        faults = faults_of(name, value, user, lambda other: permissions.may_enter(user, other))
        if faults:
            raise _invalid("\n".join(faults))
        existed = (SHOVEL, vhost, name) in self.metadata.parameters
        await self.change(c.SetParameter(SHOVEL, vhost, name, value, user))
        return created(existed)

    async def _put_upstream(self, request: Request, component: str, vhost: str, name: str, value: Any) -> Response:
        """Make or replace an upstream or a set. URIs without a host have the rights of the user."""
        user, permissions = request.user, self.node.broker.permissions
        faults = federation.faults_of(
            component, name, value, vhost, user, lambda other: permissions.may_enter(user, other)
        )
        if faults:
            raise _invalid("\n".join(faults))
        existed = (component, vhost, name) in self.metadata.parameters
        await self.change(c.SetParameter(component, vhost, name, value, user))
        return created(existed)

    async def delete_parameter(self, request: Request) -> Response:
        found = self._parameter(request)
        if found["component"] == LIMITS:
            self.rights.check_administrator(request)
            await self.change(c.ClearVhostLimits(found["vhost"]))
        elif found["component"] == OPERATOR_POLICY:
            self.rights.check_administrator(request)
            await self.change(c.ClearPolicy(found["vhost"], found["name"], operator=True))
        elif found["component"] == POLICY:
            raise bad_request("policies may not be cleared using this method")
        else:
            await self.change(c.ClearParameter(found["component"], found["vhost"], found["name"]))
        return done()

    # -- Global parameters ---------------------------------------------------------------------------------------

    async def global_parameters(self, request: Request) -> Response:
        self.rights.check_policymaker(request)
        kept = sorted(self.metadata.global_parameters.items(), key=lambda one: one[0])
        return await self.listed(request, [{"name": name, "value": value} for name, value in kept])

    def _global_name(self, request: Request) -> str:
        """Raises Problem."""
        self.rights.check_policymaker(request)
        name = request.parameters["name"]
        if name not in self.metadata.global_parameters:
            raise not_found()
        return name

    async def global_parameter(self, request: Request) -> Response:
        name = self._global_name(request)
        return json_response({"value": self.metadata.global_parameters[name], "name": name})

    def _writable_name(self, request: Request) -> str:
        """Return the parameter's name if the user may set and clear it. Raises Problem."""
        name = request.parameters["name"]
        if needs_administrator(name):
            self.rights.check_administrator(request)
        self.rights.check_policymaker(request)
        if is_internal(name):
            raise _invalid(reserved_text(name))
        return name

    async def put_global_parameter(self, request: Request) -> Response:
        name = self._writable_name(request)
        value = (await request_body.object_of(request, "value"))["value"]
        existed = name in self.metadata.global_parameters
        await self.change(c.SetGlobalParameter(name, value))
        return created(existed)

    async def delete_global_parameter(self, request: Request) -> Response:
        self._writable_name(request)
        await self.change(c.ClearGlobalParameter(self._global_name(request)))
        return done()

    # -- The cluster's name --------------------------------------------------------------------------------------

    async def cluster_name(self, request: Request) -> Response:
        self.rights.check(request)
        return json_response({"name": cluster_name(self.management.server.control)})

    async def put_cluster_name(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        name = (await request_body.object_of(request, "name"))["name"]
        fault = cluster_name_fault(name)
        if fault is not None:
            raise bad_request(f"name {fault}")
        await self.change(c.SetGlobalParameter(CLUSTER_NAME, name))
        return done()


def _invalid(text: str) -> Problem:
    return bad_request(f"Validation failed\n\n{text}\n")


def _as_parameters(component: str, kept: Mapping[tuple[str, str], Policy]) -> Iterator[dict[str, Any]]:
    """Policies are parameters, to whoever asks for those."""
    for (vhost, name), policy in kept.items():
        yield {"value": as_value(policy), "vhost": vhost, "component": component, "name": name}


def _shown(policy: Policy) -> dict[str, Any]:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }
