"""The HTTP server, its command line, and the only wiring of the other packages."""
