"""The tool's own profiles."""

from __future__ import annotations

from autosplit.readers.base import READERS
from autosplit.serialize import loads
from autosplit.types import Profile


class OwnProfile:
    """Reader of ``profile.json``."""

    def recognises(self, text: str) -> bool:
        """Return whether the text is JSON that names the schema of a profile."""
        return text.lstrip().startswith("{") and '"autosplit.profile"' in text

    def read(self, text: str, source: str) -> Profile:
        """Return the profile."""
        return loads(Profile, text, source)


READERS.register("profile")(OwnProfile())
