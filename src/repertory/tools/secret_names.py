"""Names of files whose purpose is to hold a password, a token or a private key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Final

# In lower case. These are names that programs document as the place of a credential. A name that more often holds
# something else (``token.json``, ``config.yaml``) is left out: users who are refused too often would turn all this off.
SECRET_NAMES: Final = (
    *(".env*", "*.env", ".netrc", "_netrc", ".git-credentials"),
    *(".npmrc", ".yarnrc.yml", ".pypirc", ".pgpass", ".my.cnf"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".htpasswd", ".dockercfg", ".vault-token", "service-token"),
    *("credentials.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
    *("*.tfstate", "*.tfstate.backup", "*.tfvars"),
    *(".bash_history", ".zsh_history", ".python_history", ".psql_history"),
)
SECRET_FOLDERS: Final = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", "gcloud"})
SECRET_PATHS: Final = frozenset(
    {".docker/config.json", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials"}
)
PUBLIC_NAMES: Final = ("*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist")

_SECRET: Final = re.compile("|".join(map(translate, SECRET_NAMES)))
_PUBLIC: Final = re.compile("|".join(map(translate, PUBLIC_NAMES)))


def may_hold_secrets(parts: Sequence[str]) -> bool:
    """Whether a file's path, in lower case, has the name of a secret."""
    name = parts[-1]
    if _PUBLIC.match(name):
        return False
    if _SECRET.match(name) or "/".join(parts[-2:]) in SECRET_PATHS:
        return True
    if ".git" in parts and name.startswith("config"):  # of the repository, its submodules and its work trees
        return True
    return not SECRET_FOLDERS.isdisjoint(parts[:-1])
