"""Broken venvs, each with its cause written down beforehand, and how often `envspec diagnose` names it first."""
