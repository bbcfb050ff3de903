"""Users of a test broker: their credentials and access rights."""

from __future__ import annotations

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def enrol(client: AdminClient, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    made = UserScramCredentialUpsertion(user, info, password.encode())
    client.alter_user_scram_credentials([made])[user].result(30)


def dismiss(client: AdminClient, user: str) -> None:
    gone = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
    client.alter_user_scram_credentials([gone])[user].result(30)


def grant(client: AdminClient, user: str) -> None:
    """Grant all rights on all groups and topics."""
    wanted = [
        AclBinding(
            kind,
            "*",
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for kind in (ResourceType.GROUP, ResourceType.TOPIC)
    ]
    for done in client.create_acls(wanted).values():
        done.result(30)


def revoke_groups(client: AdminClient, user: str) -> None:
    """Revoke all rights on groups, but not those on topics."""
    asked = AclBindingFilter(
        ResourceType.GROUP,
        None,
        ResourcePatternType.ANY,
        f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for done in client.delete_acls([asked]).values():
        done.result(30)


def login(user: str, password: str) -> dict[str, str]:
    """Return a client's settings for a user, under Java's names."""
    return {
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{LOGIN_MODULE} required username="{user}" password="{password}";',
    }
