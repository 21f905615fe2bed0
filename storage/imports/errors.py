"""What an import session refuses."""

from __future__ import annotations

from storage.errors import RequestRefused


class ImportNotFound(RequestRefused):
    code = "import_not_found"
    sentence = "There is no import with this id; it may have expired."
    http_status = 404


class ImportBusy(RequestRefused):
    code = "import_busy"
    sentence = "The import can't take this now: a part is on its way or here already, or it is being committed."
    http_status = 409


class ImportRefused(RequestRefused):
    """``fields`` count what is wrong with the lists of keys."""

    code = "import_refused"
    sentence = "The parts of the import do not fit together as the request demands."
    http_status = 409


class ImportTooLarge(RequestRefused):
    code = "import_too_large"
    sentence = "There are as many imports, or as many keys in one, as the daemon allows."
    http_status = 413
