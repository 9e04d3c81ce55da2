"""``python -m rayorch_flows.cli``."""

from rayorch_flows.cli.app import main

main()
