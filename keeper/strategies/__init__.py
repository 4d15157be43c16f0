"""One file per way to manage a window, behind one interface."""
