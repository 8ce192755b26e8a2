"""Known faults, planted in the real decoder through its seams, and right decoders that look odd: the controls."""

from specaudit.audit.faults.catalogue import CONTROLS, FAULTS, Control, Fault
from specaudit.audit.faults.setup import Setup

__all__ = ["CONTROLS", "FAULTS", "Control", "Fault", "Setup"]
