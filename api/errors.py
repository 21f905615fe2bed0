"""What HTTP alone refuses: who may ask, how a request is written, and what of a value it asks for."""

from __future__ import annotations

from storage.errors import KeyInvalid, RequestRefused, SettingsInvalid


class TokenFileInvalid(SettingsInvalid):
    code = "token_file_invalid"
    sentence = "The file of access tokens can't be used."


class Unauthenticated(RequestRefused):
    """``offers_basic`` is set where the answer says that a password (Basic) will do."""

    code = "unauthenticated"
    sentence = "This takes a token that the daemon knows."
    http_status = 401

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.offers_basic = False


class Forbidden(RequestRefused):
    """``fields`` name the ``role`` that it takes and, if one was asked for, the ``namespace``."""

    code = "forbidden"
    sentence = "The token does not allow this."
    http_status = 403


class CrossSiteRefused(RequestRefused):
    code = "cross_site"
    sentence = "A browser sent this for a page that is not the daemon's."
    http_status = 403


class HostNotAllowed(RequestRefused):
    code = "host_not_allowed"
    sentence = "The Host field does not name this daemon."
    http_status = 421


class RateLimited(RequestRefused):
    """``retry_after_seconds`` is when the next request passes."""

    code = "rate_limited"
    sentence = "The token's rate of requests is used up."
    http_status = 429

    def __init__(self, detail: str = "", *, requests_per_second: float, retry_after_seconds: int) -> None:
        super().__init__(detail, requests_per_second=requests_per_second)
        self.retry_after_seconds = retry_after_seconds


class BuildKeyInvalid(KeyInvalid):
    code = "build_key_invalid"
    sentence = "The path is none that the clients of this build cache ask for."


class ContentRangeUnsupported(RequestRefused):
    code = "content_range_unsupported"
    sentence = "A value is put whole; Content-Range is not accepted."


class LengthRequired(RequestRefused):
    code = "length_required"
    sentence = "A put declares its length with Content-Length; chunked bodies are not accepted."
    http_status = 411


class DigestMismatch(RequestRefused):
    code = "digest_mismatch"
    sentence = "The body does not have the digest that was declared for it."


class MediaTypeUnsupported(RequestRefused):
    code = "media_type_unsupported"
    sentence = "The body is of a type that is not taken here."
    http_status = 415


class BodyInvalid(RequestRefused):
    code = "body_invalid"
    sentence = "The body is not what this route takes; nothing of it was carried out."


class BatchTooLarge(RequestRefused):
    code = "batch_too_large"
    sentence = "The batch has more keys, or more bytes, than one request may have."
    http_status = 413


class PartNotFound(RequestRefused):
    """``fields["part"]`` names it; ``fields["parts"]`` are those the entry has."""

    code = "part_not_found"
    sentence = "The entry has no part of this name."
    http_status = 404


class RangeUnsatisfiable(RequestRefused):
    code = "range_unsatisfiable"
    sentence = "The value has no bytes in the range asked for."
    http_status = 416
