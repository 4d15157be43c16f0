"""Which devices are used and how: `--devices`, `--background-slots`, `--background-budget`."""

import re
from dataclasses import dataclass

from engine.config import Budget

CPU = "cpu"
DEVICE = re.compile(r"cpu|\d+")
BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s?)")


@dataclass(frozen=True, slots=True)
class Layout:
    """The engines of a server, one a device; "" is the device that llama.cpp would take. `hosted`: the second engine lives on
    the first one's thread, and reads while that has nothing to do."""

    devices: tuple[str, ...]
    hosted: bool = False

    @property
    def shared(self) -> bool:
        """Whether two engines compute on the same hardware."""
        return len(set(self.devices)) < len(self.devices)

    @property
    def threads(self) -> int:
        """Threads that drive engines, among which the cores are divided."""
        return 1 if self.hosted else len(self.devices)


def layout(devices: str, background_slots: int) -> Layout:
    """Raises ValueError for what is no device, for a mixture whose states would differ, and for both options at once."""
    names = tuple(name.strip() for name in devices.split(",")) if devices else ("",)
    if devices and (wrong := [name for name in names if not DEVICE.fullmatch(name)]):
        raise ValueError(f"{wrong[0]!r} is no device; name GPUs by number, as 0,1, or the processor, as cpu,cpu")
    if CPU in names and set(names) != {CPU}:
        raise ValueError("a processor and a GPU compute other bits, so one cannot go on with the other's state")
    if not background_slots:
        return Layout(names)
    if len(names) > 1:
        raise ValueError("--background-slots is for one device; with several, the idle one reads in the background")
    return Layout(names * 2, hosted=True)


def budget(text: str) -> Budget:
    """`8192` tokens, or `20s` of the engine that reads. Raises ValueError."""
    found = BUDGET.fullmatch(text.strip())
    if not found or (not found[2] and not found[1].isdigit()) or not float(found[1]):
        raise ValueError("a background budget is a number of tokens, as 8192, or seconds, as 20s")
    return Budget(seconds=float(found[1])) if found[2] else Budget(tokens=int(found[1]))
