"""A directory tree as one value, to check that nothing in it changed."""

import hashlib
import os
from pathlib import Path


def digest_of(root: Path) -> dict[str, str]:
    """Every path below `root` with its bytes, its link target, or that it is a directory."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = (
                f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            )
    return found
