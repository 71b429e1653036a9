"""The commands by purpose."""

from __future__ import annotations

# The most used commands come first: each with its module and the first sentence of its help.
SECTIONS = {
    "Run agents here": {
        "demo": ("demo", "Watch a team of agents answer a question."),
        "run": ("running", "Run an agent on a task."),
        "chat": ("chat", "Chat with an agent."),
        "resume": ("running", "Continue a run that did not finish."),
        "replay": ("replay", "Work out what recorded runs would have cost and shown here."),
        "mcp": ("serving", "Serve agents and their runs over MCP, to a client such as an editor."),
    },
    "Look": {
        "ps": ("runs", "List runs as a tree; those of the service, if one is running."),
        "top": ("runs", "Show what is running, what waits, and all costs, until Ctrl-C."),
        "logs": ("following", "Show what happened in a run and its sub-agents, event by event."),
        "stats": ("reading", "Show what a run saw and cost, beside what a plain loop would send."),
        "inspect": ("reading", "Show the state of a run, and what its model saw at an iteration."),
        "ledger": ("reading", "Show the full record of a run."),
        "memory": ("kept", "Show what agents have kept, and merge one's memory into another's."),
        "payload": ("kept", "Show the payload of a run, and how it came to be so."),
        "content": ("kept", "Show what runs have stored whole."),
    },
    "Keep agents running": {
        "up": ("serving", "Start a company: agents, limits, quotas and models, from its file."),
        "down": ("serving", "End a company's service."),
        "reload": ("serving", "Make a running company read its file again."),
        "serve": ("serving", "Keep a supervisor running, with an HTTP interface and a page."),
        "service": ("serving", "Write the systemd units of a service that your user runs."),
        "machines": ("operating", "List the machines that share a database, and their runs."),
        "drain": ("operating", "Make a machine take no more runs and hand its own over to others."),
        "webhooks": ("operating", "Look at deliveries to webhooks, and repeat them."),
    },
    "Steer what runs there": {
        "start": ("steering", "Start a run in the service and return at once."),
        "attach": ("attaching", "Follow a run of the service, and send it messages."),
        "send": ("steering", "Send a message to a run of the service."),
        "approvals": ("steering", "List the tool calls that wait for a person, or for their result."),
        "approve": ("steering", "Allow a tool call that waits."),
        "deny": ("steering", "Deny a tool call that waits."),
        "give": ("steering", "Give a tool call the result that it waits for."),
        "pause": ("steering", "Pause a run of the service at its next boundary, until resume."),
        "stop": ("steering", "Stop a run of the service at its next boundary."),
        "kill": ("steering", "Kill a run of the service at once."),
    },
    "Begin again": {
        "fork": ("steering", "Start a new run from an iteration of another one."),
        "rewind": ("steering", "End a run and start it again from one of its iterations."),
    },
    "Databases": {
        "backup": ("operating", "Copy a database into one file, even while it is written to."),
        "restore": ("operating", "Make a database from a backup, where there is none yet."),
        "migrate": ("operating", "Move a database from a file to PostgreSQL, or back."),
        "vacuum": ("operating", "Give the space of removed runs and contents back to the disk."),
        "rm": ("steering", "Remove a run that is not under way, and its sub-agents, for good."),
    },
    "Check": {
        "doctor": ("doctor", "Check this machine and its settings."),
        "stress": ("torture", "Append from many tasks at once, and check what was written."),
        "torture": ("torture", "Try to make repertory lose data."),
    },
}
COMMANDS = {name: listed for commands in SECTIONS.values() for name, listed in commands.items()}
