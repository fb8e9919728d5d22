"""What `ctl devices` and `ctl estimate` show. Text in, text out."""

from __future__ import annotations

from collections.abc import Iterator

from modeld.admin.schemas import DeviceReport, DevicesReply, EstimateReply
from modeld.cli.sentences import said
from modeld.cli.table import NARROWEST, Row, Screen, table
from modeld.cli.words import cell, memory, one_line
from modeld.hardware.footprint import Footprint, Where
from modeld.hardware.machine import Condition, Device
from modeld.protocol.capabilities import Capability

DEVICE_HEADINGS = ("DEVICE", "CONDITION", "TOTAL", "FREE", "HELD", "USABLE")
LOADER_HEADINGS = ("LOADER", "ENGINE")

_MEBIBYTE = 2**20


def label(device: Device) -> str:
    """Return a device's short name: "GPU 0", "RAM"."""
    return "RAM" if device.index is None else f"GPU {device.index}"


def labels(reply: DevicesReply) -> dict[str, str]:
    """Return the devices' short names by id."""
    return {report.device.id: label(report.device) for report in reply.devices}


# --- devices ------------------------------------------------------------------------------------------------


def devices_page(reply: DevicesReply, screen: Screen) -> str:
    """Return the memories with who holds how much of each, and the loaders with what would help them.

    HELD is promised to models, USABLE what models may hold in all. Piped, each device and each loader is
    exactly one line.
    """
    lines = list(table(DEVICE_HEADINGS, 2, [_device(report) for report in reply.devices], screen))
    if message := said(reply.message):
        lines += screen.fold(f"no GPU: {message}")
    if reply.loaders:
        rows = [_loader(name, found) for name, found in sorted(reply.loaders.items())]
        lines += ["", *table(LOADER_HEADINGS, 2, rows, screen)]
    return "\n".join(lines)


def _device(report: DeviceReport) -> Row:
    device = report.device
    fine = device.condition is Condition.OK
    below = [cell(device.name)] if device.name != label(device) else []
    if not fine or device.message:
        below.append(said(device.message) or f"the device is {device.condition}; its memory is not used")
    held = sorted(report.held.items(), key=lambda item: (-item[1], item[0]))
    if held:
        below.append("held by " + ", ".join(f"{cell(name)} {memory(size)}" for name, size in held))
    if others := said(report.others):
        below.append(others)
    sizes = (device.total, device.free, sum(report.held.values()), report.usable)
    cells = (label(device), str(device.condition), *map(memory, sizes))
    return Row(cells, below, "green" if fine else "red")


def _loader(name: str, found: Capability) -> Row:
    where = f"; in the environment of {one_line(found.python)}" if found.python else ""
    below = [said(found.detail) + where]
    if found.fix:
        below.append(f"to get it: {one_line(found.fix)}")
    return Row(
        (cell(name), "there" if found.available else "missing"),
        below,
        "green" if found.available else "yellow",
    )


# --- an estimate --------------------------------------------------------------------------------------------


def estimate_page(reply: EstimateReply, screen: Screen) -> str:
    """Return a model's footprint as a sum, line by line, and what modeld would do with it."""
    lines = [*_footprint(f"{cell(reply.name)}: {reply.footprint.source}", reply.footprint, screen)]
    if reply.estimate is not None and reply.estimate != reply.footprint:
        lines += ["", *_footprint("without knowing better: estimated", reply.estimate, screen)]
        lines += screen.fold(_difference(reply.footprint, reply.estimate))
    if fits := said(reply.fits):
        lines += ["", *screen.fold(fits)]
    return "\n".join(lines)


def _footprint(title: str, footprint: Footprint, screen: Screen) -> Iterator[str]:
    note = said(footprint.note)
    yield from screen.fold(f"{title} ({note})" if note else title)
    sums: list[tuple[str, str, str]] = []
    for where in Where:
        parts = [(one_line(line.label), line.size) for line in footprint.lines if line.where is where]
        if parts:
            total = footprint.total(where)
            parts.append((f"total, {memory(total)}", total))
            sums += [(where.upper(), text, _mebibytes(size)) for text, size in parts]
    left = max((len(text) for _, text, _ in sums), default=0)
    right = max((len(figure) for _, _, figure in sums), default=0)
    if screen.width is not None:
        left = max(min(left, screen.width - right - len("  GPU    ")), NARROWEST)
    column = Screen(None if screen.width is None else left, colour=False)
    for name, text, figure in sums:
        *above, last = column.fold(text) or [""]
        yield from (f"  {name}  {line}" for line in above)
        yield f"  {name}  {last.ljust(left)}  {figure.rjust(right)}"


def _mebibytes(size: int) -> str:
    """Return bytes in the one unit in which the lines of a sum can be added up by the reader."""
    return f"{size / _MEBIBYTE:,.1f} MiB"


def _difference(used: Footprint, estimate: Footprint) -> str:
    now, then = (sum(part.total(where) for where in Where) for part in (used, estimate))
    if not then or now == then:
        return ""
    if now >= 3 * then:
        return f"the {used.source} figure is {now / then:,.0f} times as large"
    return f"the {used.source} figure is {abs(now - then) / then:.0%} {'above' if now > then else 'below'} it"
