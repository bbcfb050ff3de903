"""Makes the golden checkpoints: python tests/golden/make.py [--release R]... [--case C]...

Each release runs in a child process of its own, with that release's PySpark first on its path. The
queries run below one fixed directory (`--base`), because checkpoints hold absolute paths and those
must name no particular machine. RocksDB also writes the host's name into its files; run under
`unshare --uts sh -c 'hostname localhost; …'` where that matters.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.golden.catalogue import CASES  # noqa: E402
from tests.golden.library import Golden, pack  # noqa: E402
from tests.golden.shape import UNIQUE_IDS, Case, version  # noqa: E402
from tests.spark.releases import RELEASES, run_child  # noqa: E402

OPERATOR_METADATA = "checkpoint/state/0/_metadata/metadata"


def reader_of(release: str, case: Case) -> str:
    """The release whose `statestore` source speaks for a checkpoint: its own, where it can.

    3.5 has no such source, and that of 4.0 stumbles over the unique ids in its own file names.
    """
    if version(release) == (3, 5):
        return "4.0.5"
    if version(release) == (4, 0) and UNIQUE_IDS.items() <= case.conf.items():
        return "4.3.0"
    return release


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", action="append", choices=RELEASES)
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--missing", action="store_true", help="only cases without an archive")
    parser.add_argument("--base", type=Path, default=Path("/data/golden"))
    arguments = parser.parse_args()
    failures = 0
    for release in arguments.release or RELEASES:
        names = [name for name in arguments.case or CASES if CASES[name].runs_on(release)]
        if arguments.missing:
            names = [name for name in names if not Golden(release, name).archive.exists()]
        failures += make(release, names, arguments.base) if names else 0
    return 1 if failures else 0


def make(release: str, names: list[str], base: Path) -> int:
    """Make the archives of one release; return how many cases failed."""
    kept = base / "kept" / release
    jobs = [
        {
            "case": name,
            "base": str(base / release / name),
            "kept": str(kept / name),
            "answer": str(kept / f"{name}.json"),
            "archive": str(Golden(release, name).archive),
            "reader": reader_of(release, CASES[name]),
        }
        for name in names
    ]
    kept.mkdir(parents=True, exist_ok=True)
    run_child(release, "make", jobs)
    facts = {job["case"]: json.loads(Path(job["answer"]).read_text()) for job in jobs}
    failed = [name for name in names if "failure" in facts[name]]
    spoken_for = [job for job in jobs if job["reader"] != release and job["case"] not in failed]
    for reader in sorted({job["reader"] for job in spoken_for}):
        theirs = [job for job in spoken_for if job["reader"] == reader]
        for name, found in described_by(reader, theirs, base).items():
            pack(kept / name, {**facts[name], **found}, Golden(release, name).archive)
    for name in failed:
        print(f"--- {release} {name}\n{facts[name]['failure']}", file=sys.stderr)
    return len(failed)


def described_by(reader: str, jobs: list[dict[str, str]], base: Path) -> dict[str, Any]:
    """What another release's `statestore` source says about copies of these checkpoints."""
    copies = []
    for job in jobs:
        copy = base / "copies" / job["case"]
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(job["kept"], copy)
        if CASES[job["case"]].session_keys:
            _add_operator_metadata(copy, CASES[job["case"]])
        copies.append({"case": job["case"], "base": str(copy), "answer": f"{copy}.json"})
    run_child(reader, "describe", copies)
    accounts = {job["case"]: json.loads(Path(job["answer"]).read_text()) for job in copies}
    for name, account in accounts.items():
        if "failure" in account:
            raise RuntimeError(f"{reader} cannot describe {name}:\n{account['failure']}")
        if CASES[name].session_keys:
            account["state_metadata"] = []  # it read what we added
    return accounts


def _add_operator_metadata(copy: Path, case: Case) -> None:
    """Tell the reader what it cannot guess: by how many columns session windows are scanned."""
    store = {"storeName": "default", "numColsPrefixKey": case.session_keys, "numPartitions": 2}
    operator = {"operatorId": 0, "operatorName": "sessionWindowStateStoreSaveExec"}
    metadata = {"operatorInfo": operator, "stateStoreInfo": [store]}
    path = copy / OPERATOR_METADATA
    path.parent.mkdir()
    path.write_text("v1\n" + json.dumps(metadata))


if __name__ == "__main__":
    sys.exit(main())
