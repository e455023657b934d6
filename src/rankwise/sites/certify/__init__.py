"""Prove on the real module that a site is read with the right layout."""

from rankwise.sites.certify.certificates import Certificate, Certificates, Proof
from rankwise.sites.certify.prove import certify

__all__ = ["Certificate", "Certificates", "Proof", "certify"]
