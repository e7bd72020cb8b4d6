"""The certificates of a test's Kubernetes cluster, made by openssl. Knows no cluster."""

from __future__ import annotations

from pathlib import Path

from tests.slurm_daemon import run, write

CONF = """\
[req]
distinguished_name = subject
[subject]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, IP:{service}, DNS:localhost, DNS:kubernetes.default.svc
[client]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
extendedKeyUsage = clientAuth
"""
SUBJECTS = {"ca": "/CN=test authority", "server": "/CN=server", "client": "/O=system:masters/CN=client"}
NEW = ["openssl", "req", "-x509", "-days", "3650", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def write_certificates(folder: Path, *, service: str) -> None:
    """Write an authority, a certificate for the API server and the kubelets, and one for a client with all rights.

    `accounts.key` signs the tokens of service accounts. `service`: the address at which pods find the API server.
    """
    conf = folder / "openssl.cnf"
    write(conf, CONF.format(service=service))
    for name, subject in SUBJECTS.items():
        words = ["-config", str(conf), "-extensions", name, "-subj", subject]
        words += ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt"]
        signer = [] if name == "ca" else ["-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key"]
        run([*NEW, *words, *signer])
    # Not a key of `openssl req`: the API server reads no PKCS #8 here.
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{folder}/accounts.key"])
