"""The bundled flows, one file each: a Pipeline and its FlowDefinition. Nobody imports them: entry points name them."""
