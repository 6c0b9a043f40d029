"""What a traced function contains: its Pallas calls, their grids and what each visits, their bodies and windows."""
