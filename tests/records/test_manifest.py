from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rayorch_flows.records.manifest import ManifestStore
from tests.records.helpers import PRINT, item, manifest_of


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path), PRINT)
    manifest = manifest_of(
        [item("ü #%20\n.pdf", modified_at=datetime(2026, 1, 1, 1, 2, 3, 456789, UTC), etag="e"), item("b", "")]
    )
    microbatch = store.write(manifest)
    assert store.ids() == [microbatch]
    assert store.read(microbatch) == manifest
    assert store.unfinished() == [manifest]
    assert Path(store.uri(microbatch)).read_text().startswith("{")


def test_a_deleted_manifest_is_gone_and_deleting_twice_is_fine(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path), PRINT)
    microbatch = store.write(manifest_of([item("a")]))
    store.delete(microbatch)
    store.delete(microbatch)
    assert store.read(microbatch) is None
    assert store.unfinished() == []


def test_fingerprints_do_not_see_each_other(tmp_path: Path) -> None:
    ManifestStore(str(tmp_path), PRINT).write(manifest_of([item("a")]))
    assert ManifestStore(str(tmp_path), "e" * 64).ids() == []


def test_a_manifest_that_is_torn_or_tampered_with_is_forgotten(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path), PRINT)
    torn = store.write(manifest_of([item("a")]))
    tampered = store.write(manifest_of([item("b")]))
    good = store.write(manifest_of([item("c")]))
    Path(store.uri(torn)).write_text(Path(store.uri(torn)).read_text()[:40])
    Path(store.uri(tampered)).write_text(Path(store.uri(good)).read_text())
    assert [manifest.microbatch_id for manifest in store.unfinished()] == [good]
    assert store.ids() == [good]
