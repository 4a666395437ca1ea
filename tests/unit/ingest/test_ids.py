from __future__ import annotations

import uuid

from arborcast.ingest.addresses import NotificationIds, resource_id


def test_notification_ids_sort_in_the_order_they_were_made() -> None:
    ids = NotificationIds()
    made = [ids.next() for _ in range(20_000)]  # more than one millisecond can count
    assert made == sorted(set(made))


def test_notification_ids_are_uuids_of_version_7_that_carry_the_time() -> None:
    ids = NotificationIds()
    parsed = uuid.UUID(ids.next())
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert uuid.UUID(ids.next()).int >> 80 >= parsed.int >> 80


def test_two_processes_do_not_make_the_same() -> None:
    assert NotificationIds().next()[20:] != NotificationIds().next()[20:]


def test_resource_ids_fit_into_a_url_and_are_long_enough_not_to_be_guessed() -> None:
    made = {resource_id() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(
        len(each) == 24 and not each.startswith("-") and each.replace("-", "").replace("_", "").isalnum()
        for each in made
    )
