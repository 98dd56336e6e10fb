"""The data sets that `thresher data get` knows by name; imports nothing."""

NAMES = ("digits", "cifar10", "cifar100", "fashion-mnist")

FINGERPRINTS = {
    "digits": "d0e0dce90a6096f189d3cbb5fc3bcd4b",
    "cifar10": "316c34dace551fb80b78eaa492caf36f",
    "fashion-mnist": "76b0f678d22ff501730e81b291689677",
}
"""Fingerprints of the published images; CIFAR-100 is checked by its archive's checksum."""
