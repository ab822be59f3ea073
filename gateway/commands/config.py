"""Command `kvgate config`: prints the options in effect, and validates them without reaching a worker."""

import argparse

from gateway.config import Config, checked, ports_in_tables
from gateway.config.effective import effective_options, json_values, toml_lines
from gateway.config.reading import ConfigErrors, ConfigReader
from gateway.runtime.terminal import print_json, print_lines


def show(args: argparse.Namespace, reader: ConfigReader[Config]) -> int:
    """Print the options in effect with their sources. Returns the exit code. Raises ConfigErrors."""
    checked(reader)
    effective = effective_options(reader, given_only=args.given)
    if args.format == "json":
        print_json(json_values(effective))
    else:
        print_lines(*toml_lines(effective))
    return 0


def validated(reader: ConfigReader[Config]) -> Config:
    """Return the configuration that was read. Raises ConfigErrors with the mistakes of every source and of
    every part of a gateway."""
    from gateway.app.validation import mistakes_of

    config, wrong = ports_in_tables(reader.made())
    if mistakes := [*reader.mistakes, *wrong, *mistakes_of(config)]:
        raise ConfigErrors(mistakes)
    return config
