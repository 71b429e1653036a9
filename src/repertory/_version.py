"""The version, alone in its file so that the build and ``repertory version`` read one place."""

__version__ = "0.1.0"
