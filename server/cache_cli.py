"""`kvalet cache ...`: look at, prove, clean and move the state parked on disk. Works beside running servers."""

import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from engine import catalog
from kvcache import admin, transfer
from kvcache.chain import unpack_tokens
from kvcache.config import CacheConfig
from kvcache.errors import CacheError, IndexBroken
from kvcache.facts import EntryKind
from kvcache.folder import INDEX_NAME, Folder, open_folder, split_key
from kvcache.index import Row
from server.cache_show import BLOCK, COLUMNS, bar, cells, fail, model_body, out, plain, proof, row_body, say_json, wrong
from server.sizes import parse_size, show_size

Dir = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="The cache folder. None given: the one `kvalet serve` uses.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

app = typer.Typer(
    help="State parked on disk: what is there, whether it is sound, and how to clean up or move it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def default_folder() -> Path:
    """Where `kvalet serve` parks when it is not told where (server/runtime.py)."""
    return catalog.models_folder().parent / "state"


@app.command()
def stat(cache_dir: Dir = None, as_json: Json = False) -> None:
    """Sizes and counts, by model."""
    with opened(cache_dir) as folder:
        rows = admin.listing(folder)
        names = {model.fingerprint: model for model in folder.index.models()}
        files, quarantine_bytes = folder.files.quarantined()
        body: dict[str, Any] = {
            "dir": str(folder.files.folder),
            "budget": folder.index.meta("budget"),
            "bytes": sum(row.bytes for row in rows),
            "entries": len(rows),
            "written_last_24h": folder.index.written_since(time.time()),
            "quarantined": files,
            "quarantined_bytes": quarantine_bytes,
            "damaged_so_far": folder.index.meta("damaged"),
            "processes": len(folder.files.owners()) - 1,
            "models": [model_body(fingerprint, rows, names) for fingerprint in sorted({split_key(row.key)[0] for row in rows})],
        }
    if as_json:
        return say_json(body)
    overview = Table("", "", show_header=False, box=None)
    for key in ("dir", "entries", "processes", "quarantined", "damaged_so_far"):
        overview.add_row(key.replace("_", " "), str(body[key]))
    for key in ("budget", "bytes", "written_last_24h"):
        overview.add_row(key.replace("_", " "), show_size(body[key]) if body[key] or key != "budget" else "not known yet")
    models = Table("model", "fingerprint", "blocks", "checkpoints", "size", "deepest", "settings", title="Models")
    for one in body["models"]:
        counts = (str(one["blocks"]), str(one["checkpoints"]), show_size(one["bytes"]), str(one["deepest_tokens"]))
        models.add_row(plain(one["name"]) or "?", one["fingerprint"][:12], *counts, plain(one["settings"]))
    out(overview, models)
    return None


@app.command(name="ls")
def list_entries(
    cache_dir: Dir = None,
    as_json: Json = False,
    kind: Annotated[EntryKind | None, typer.Option(help="Blocks or checkpoints alone.")] = None,
    model: Annotated[str | None, typer.Option(help="Only models whose name or fingerprint begins so.")] = None,
    session: Annotated[str | None, typer.Option(help="Only what this conversation parked first.")] = None,
    sort: Annotated[str, typer.Option(help="used, size or tokens; the largest first.")] = "used",
    limit: Annotated[int, typer.Option(min=0, help="How many lines; 0 = all.")] = 50,
) -> None:
    """Entries, the last used first."""
    keys: dict[str, Callable[[Row], float]] = {
        "used": lambda r: r.last_used,
        "size": lambda r: r.bytes,
        "tokens": lambda r: r.end,
    }
    if sort not in keys:
        wrong(f"--sort {sort}: it must be used, size or tokens")
    with opened(cache_dir) as folder:
        names = {one.fingerprint: one.name for one in folder.index.models()}
        rows = [row for row in admin.listing(folder) if _is_wanted(row, kind, model, session, names)]
    rows.sort(key=keys[sort], reverse=True)
    shown = rows[:limit] if limit else rows
    if as_json:
        return say_json({"count": len(rows), "entries": [row_body(row) for row in shown]})
    table = Table(*COLUMNS, "model")
    for row in shown:
        table.add_row(*cells(row), plain(names.get(split_key(row.key)[0], "")) or split_key(row.key)[0].hex()[:12])
    out(table, f"{len(shown)} of {len(rows)} entries")
    return None


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="A chain id, or the beginning of one.")],
    cache_dir: Dir = None,
    as_json: Json = False,
) -> None:
    """One prefix: its block and checkpoint, the chain it stands on, what stands on it, and whether its bytes are sound."""
    with opened(cache_dir) as folder:
        rows = admin.listing(folder)
        mine = _named(rows, id)
        key = mine[0].key
        chain = [each for each in admin.chain_of(rows, [key]) if each[0] is BLOCK]
        packed = folder.index.tokens([key])[0]
        body: dict[str, Any] = {
            "id": split_key(key)[1].hex(),
            "fingerprint": split_key(key)[0].hex(),
            "entries": [row_body(row) | {"state": proof(folder, row)} for row in mine],
            "tokens": list(unpack_tokens(packed)) if packed else [],
            "chain_blocks": len(chain),
            "chain_complete": bool(chain) and _starts_at_zero(rows, chain[0]),
            "children": [split_key(row.key)[1].hex() for row in rows if row.kind is BLOCK and row.parent == key],
        }
    if as_json:
        return say_json(body)
    table = Table("", "", show_header=False, box=None)
    for name, value in body.items():
        if name != "entries":
            table.add_row(name.replace("_", " "), str(value))
    entries = Table(*COLUMNS, "bytes are")
    for row, entry in zip(mine, body["entries"], strict=True):
        entries.add_row(*cells(row), str(entry["state"]))
    out(entries, table)
    return None


@app.command()
def verify(
    cache_dir: Dir = None,
    as_json: Json = False,
    fix: Annotated[bool, typer.Option("--fix", help="Set aside what is damaged and make index and folder agree.")] = False,
) -> None:
    """Read every byte, prove every chain, compare index and folder both ways. Ends with 1 when something stays wrong."""
    try:
        with opened(cache_dir, rebuilds=fix) as folder, bar("reading", as_json) as progress:
            report = admin.verify(folder, fix=fix, progress=progress)
    except IndexBroken:
        with opened(cache_dir, tidy=True) as folder, bar("reading", as_json) as progress:
            report = admin.verify(folder, fix=True, progress=progress)
    if as_json:
        say_json(asdict(report) | {"ok": report.ok})
    else:
        if report.problems:
            table = Table("what", "problem", "fixed")
            for problem in report.problems:
                table.add_row(problem.what, problem.reason, "yes" if problem.fixed else "no")
            out(table)
        out(f"{report.blocks} blocks and {report.checkpoints} checkpoints, {show_size(report.bytes)}: {_verdict(report.ok, fix)}")
    if not report.ok and not fix:
        raise typer.Exit(1)


@app.command()
def gc(
    cache_dir: Dir = None,
    as_json: Json = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="SIZE", help="Also drop the least recently used down to SIZE.")
    ] = None,
) -> None:
    """Remove what serves nobody: leftovers, quarantined files, entries that no complete chain leads to."""
    keep = None if to is None else size_of("--to", to)
    with opened(cache_dir, tidy=True) as folder:
        done = admin.gc(folder, keep)
    if as_json:
        return say_json(asdict(done))
    rest = f"{done.leftovers} leftovers and {done.quarantined} quarantined files"
    return out(f"removed {done.entries} entries, {show_size(done.bytes)}, {rest}")


@app.command()
def rm(
    ids: Annotated[list[str] | None, typer.Argument(help="Chain ids (or beginnings); what stands on them goes too.")] = None,
    cache_dir: Dir = None,
    as_json: Json = False,
    session: Annotated[str | None, typer.Option(help="What this conversation parked first, and what stands on it.")] = None,
    model: Annotated[str | None, typer.Option(help="Everything of models whose name or fingerprint begins so.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    yes: Yes = False,
) -> None:
    """Delete entries and all that stands on them."""
    if sum([bool(ids), session is not None, model is not None, everything]) != 1:
        wrong("say what to delete: ids, --session, --model or --all (one of them)")
    with opened(cache_dir) as folder:
        rows = admin.listing(folder)
        names = {one.fingerprint: one.name for one in folder.index.models()}
        named = [row for id in ids or [] for row in _named(rows, id)]
        chosen = named or [row for row in rows if everything or _is_wanted(row, None, model, session, names)]
        keys = admin.under(rows, dict.fromkeys(row.key for row in chosen))
        keys = tuple(dict.fromkeys(keys))
        nbytes = sum(row.bytes for row in rows if (row.kind, row.key) in set(keys))
        if keys and not yes and not as_json:
            typer.confirm(f"delete {len(keys)} entries, {show_size(nbytes)}?", abort=True)
        gone = admin.delete(folder, keys)
    if as_json:
        return say_json({"entries": gone, "bytes": nbytes})
    return out(f"deleted {gone} entries, {show_size(nbytes)}")


@app.command(name="export")
def export_entries(
    target: Annotated[Path, typer.Argument(help="The tar to write.")],
    ids: Annotated[
        list[str] | None, typer.Argument(help="Chain ids (or beginnings) with the chains under them; none = all.")
    ] = None,
    cache_dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Write entries, with the chains they stand on, into a tar."""
    if target.is_dir() or not target.parent.is_dir():
        wrong(f"{target} cannot be written: it must name a file in a folder that exists")
    with opened(cache_dir) as folder, bar("writing", as_json) as progress:
        rows = admin.listing(folder)
        keys = [row.key for id in ids for row in _named(rows, id)] if ids else None
        moved = transfer.export_to(folder, target, keys, progress)
    if as_json:
        return say_json(asdict(moved))
    return out(f"{moved.entries} entries in {target}, {show_size(moved.bytes)}")


@app.command(name="import")
def import_entries(
    archive: Annotated[Path, typer.Argument(help="A tar that `kvalet cache export` wrote.", exists=True, dir_okay=False)],
    cache_dir: Dir = None,
    as_json: Json = False,
    cache_disk: Annotated[
        str | None, typer.Option("--cache-disk", metavar="SIZE", help="The folder's budget. None given: the last server's.")
    ] = None,
) -> None:
    """Add a tar's entries to the folder, every byte proved first. Ends with 1 when some were damaged."""
    place = cache_dir or default_folder()
    budget = size_of("--cache-disk", cache_disk) if cache_disk is not None else _budget_of(place)
    config = CacheConfig(ram_bytes=0, disk_bytes=budget, dir=place, write_bytes_per_day=0)
    try:
        with bar("reading", as_json) as progress:
            moved = transfer.import_from(archive, config, progress)
    except tarfile.TarError as error:
        wrong(f"{archive} is no tar that `kvalet cache export` wrote: {error}")
    if as_json:
        say_json(asdict(moved))
    else:
        out(f"{moved.entries} entries, {moved.refused} refused for lack of room or of their parent, {len(moved.damaged)} damaged")
        for line in moved.damaged:
            out(f"  {line}")
    if moved.damaged:
        raise typer.Exit(1)


@contextmanager
def opened(cache_dir: Path | None, *, tidy: bool = False, rebuilds: bool = False) -> Iterator[Folder]:
    """The folder, as it is unless `tidy`. One that does not exist ends with 2, one that cannot be used with 1.

    IndexBroken is raised only to a caller that `rebuilds` the index; to all others it is the end, with the way out named.
    """
    place = cache_dir or default_folder()
    if not (place / INDEX_NAME).exists() and not any(place.glob("*/*.block")):
        wrong(f"there is no parked state in {place}")
    try:
        with closing(open_folder(place, tidy=tidy)) as folder:
            yield folder
    except IndexBroken as error:
        if rebuilds:
            raise
        fail(f"{error}; `kvalet cache verify --fix` rebuilds it from the files", 1)
    except (OSError, CacheError) as error:
        fail(str(error), 1)


def _budget_of(place: Path) -> int:
    if not (place / INDEX_NAME).exists():
        wrong("a new folder needs --cache-disk SIZE, its budget")
    with opened(place) as folder:
        budget = folder.index.meta("budget")
    return budget or wrong("no server has used this folder yet: give its budget with --cache-disk SIZE")


def _named(rows: tuple[Row, ...], id: str) -> list[Row]:
    """The rows of the one prefix whose chain id begins so; ends with 2 for none, or more than one."""
    wanted = id.lower()
    found = [row for row in rows if split_key(row.key)[1].hex().startswith(wanted)]
    keys = {row.key for row in found}
    if len(wanted) < 4 or not keys:
        wrong(f"no entry's id begins with {id!r}" if len(wanted) >= 4 else "an id needs at least its first 4 digits")
    if len(keys) > 1:
        wrong(f"{len(keys)} prefixes have ids that begin with {id!r}; give more digits")
    return found


def _is_wanted(row: Row, kind: EntryKind | None, model: str | None, session: str | None, names: dict[bytes, str]) -> bool:
    fingerprint = split_key(row.key)[0]
    by_model = model is None or fingerprint.hex().startswith(model) or names.get(fingerprint, "").startswith(model)
    return kind in (None, row.kind) and by_model and session in (None, row.session)


def size_of(option: str, text: str) -> int:
    """Bytes of a size option; ends with 2 for what is none."""
    try:
        return parse_size(text)
    except ValueError as error:
        wrong(f"{option} {text}: {error}")


def _starts_at_zero(rows: tuple[Row, ...], key: tuple[EntryKind, bytes]) -> bool:
    return any(row.start == 0 for row in rows if (row.kind, row.key) == key)


def _verdict(ok: bool, fix: bool) -> str:
    return "all sound" if ok else "fixed" if fix else "not sound"
