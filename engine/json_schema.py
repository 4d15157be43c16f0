from engine.errors import BadRequest


def schema_to_grammar(text: str) -> str:
    raise BadRequest("later", "json_schema")
