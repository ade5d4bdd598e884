"""The limit: what plain psycopg reaches with SQL written by hand for one purpose."""
