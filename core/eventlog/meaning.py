"""What Kafka's errors mean to somebody who has to do something about them."""

from __future__ import annotations

from kafka import errors

_MEANING: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (
        (errors.SaslAuthenticationFailedError,),
        "it does not accept our credentials: see kafka.sasl_username, kafka.sasl_password and kafka.sasl_mechanism",
    ),
    ((errors.UnsupportedSaslMechanismError,), "it does not know kafka.sasl_mechanism"),
    ((errors.AuthorizationError,), "its access rules do not let our user do that: whoever runs it can allow it"),
    ((errors.UnknownTopicOrPartitionError,), "there is no such topic"),
    (
        (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError),
        "the record is too large: kafka.max_record_bytes and the topic's max.message.bytes say how large one may be",
    ),
    ((errors.KafkaTimeoutError,), "no answer in time"),
)


def meaning_of(error: BaseException) -> str:
    """What people can act on; where there is no more to say, with the name that Kafka's documents have for it."""
    for kinds, words in _MEANING:
        if isinstance(error, kinds):
            return words
    if not isinstance(error, errors.KafkaError):
        return str(error)
    said = " ".join(str(each) for each in error.args) or getattr(error, "description", "") or "no reason was given"
    return f"{said} ({type(error).__name__})"
