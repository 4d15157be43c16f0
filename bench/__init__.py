"""Instruments: hit rates, rollback strategies, exactness, peers. Talks to servers over HTTP only."""
