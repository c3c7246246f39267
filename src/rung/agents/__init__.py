"""What an AI agent may ask of Rung: commands as tools, within one folder, with answers of a bounded size (docs/how-to/agents.md)."""
