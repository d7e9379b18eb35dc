"""Permissions of users on a broker with an authorizer, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


def permission(
    user: str,
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    """Return what lets a user do an operation on a resource."""
    allow = AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, allow)


def grant(broker: KafkaBroker, wanted: AclBinding) -> None:
    """Grant a permission, and wait until the broker applies it.

    The controller answers before the broker has read the change from the metadata log.
    """
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.create_acls([wanted]).values():
        done.result(10)
    while not _granted(admin, wanted):
        time.sleep(0.01)


def revoke(broker: KafkaBroker, granted: AclBinding) -> None:
    """Revoke a permission, and wait until the broker no longer applies it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.delete_acls([_filter(granted)]).values():
        assert len(done.result(10)) == 1
    while _granted(admin, granted):
        time.sleep(0.01)


def _granted(admin: AdminClient, wanted: AclBinding) -> bool:
    return bool(admin.describe_acls(_filter(wanted)).result(10))


def _filter(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
