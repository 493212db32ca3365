"""Maps the top-level folders onto the one package that is installed; everything else is said in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("connector", "tracer", "dashboard")

setup(
    packages=["kvtrail", *(f"kvtrail.{name}" for room in ROOMS for name in find_packages(include=[room, f"{room}.*"]))],
    package_dir={"kvtrail": "package"} | {f"kvtrail.{room}": room for room in ROOMS},
)
