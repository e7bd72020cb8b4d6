"""Tests of the Flux backend."""
