"""Nodes as scontrol prints them."""

from __future__ import annotations


def row(name: str, **more: object) -> str:
    """A node of 8 cores, as `scontrol -o show nodes` prints it; fields of all versions together."""
    fields = {
        "NodeName": name,
        "Arch": "x86_64",
        "CoresPerSocket": 4,
        "CPUAlloc": 0,
        "CPUEfctv": 8,
        "CPUTot": 8,
        "ActiveFeatures": "(null)",
        "Gres": "(null)",
        "OS": "Linux 6.1 #1 SMP",
        "RealMemory": 16384,
        "AllocMem": 0,
        "Sockets": 2,
        "State": "IDLE",
        "TmpDisk": 1024,
        "Partitions": "main",
        "CfgTRES": "cpu=8,mem=16G",
        "AllocTRES": "",
    }
    return " ".join(f"{key}={value}" for key, value in (fields | more).items())
